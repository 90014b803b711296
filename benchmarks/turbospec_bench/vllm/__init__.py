"""The benchmark in vLLM: policies in servers of their own, under load by `vllm bench serve`."""
