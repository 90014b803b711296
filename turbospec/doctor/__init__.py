"""Says in plain words whether speculation pays on a server that TurboSpec need not run on."""
