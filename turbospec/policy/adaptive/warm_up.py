def compile_kernels(settings): pass
