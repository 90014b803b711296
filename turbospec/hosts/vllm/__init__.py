"""TurboSpec in vLLM: a scheduler that asks the controller how many tokens to draft, and the plugin that installs it.

Only `scheduler/schedulers.py` and `worker/speculator_on_demand.py` import vLLM, and `plugin` once it is registered.
"""
