"""TurboSpec in vLLM: a scheduler that asks the controller how many tokens to draft, and the plugin that installs it.

Nothing here imports vLLM but `scheduler` and, once it is registered, `plugin`.
"""
