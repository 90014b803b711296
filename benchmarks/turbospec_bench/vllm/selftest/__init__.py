"""`turbospec selftest vllm`: does TurboSpec work with this vLLM, model and machine, and does it pay?"""
