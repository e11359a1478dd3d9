"""The signatures that bpc relies on, as the installed packages gave them.

Read from CuPy 14.2.0 (cupy-cuda13x) and nvmath-python 1.0.0: `inspect.signature` where it works,
else the first line of the docstring.
"""

CUPY_VERSION = "14.2.0"
NVMATH_VERSION = "1.0.0"

CUPY = {
    "cupy.RawModule": (
        "RawModule(str code=None, *, str path=None, tuple options=(), str backend='nvrtc', "
        "bool translate_cucomplex=False, bool enable_cooperative_groups=False, "
        "name_expressions=None, jitify=None)"
    ),
    "cupy.RawModule.get_function": "RawModule.get_function(self, str name)",
    "cupy.RawKernel.__call__": "RawKernel.__call__(self, grid, block, args, **kwargs)",
    "cupy.cuda.Memory": "Memory(size_t size)",
    "cupy.cuda.PinnedMemory": "(size, flags=0)",
    "cupy.cuda.PinnedMemoryPointer": "PinnedMemoryPointer(mem, ptrdiff_t offset)",
    "cupy.cuda.Stream": "(null=False, non_blocking=False, ptds=False, priority=None)",
    "cupy.cuda.Stream.begin_capture": "(self, mode=None)",
    "cupy.cuda.Stream.end_capture": "(self)",
    "cupy.cuda.Stream.wait_event": "(self, event)",
    "cupy.cuda.Stream.synchronize": "(self)",
    "cupy.cuda.Event": "(block=False, disable_timing=False, interprocess=False)",
    "cupy.cuda.Event.record": "(self, stream=None)",
    "cupy.cuda.Event.synchronize": "(self)",
    "cupy.cuda.Graph.launch": "Graph.launch(self, stream=None)",
    "cupy.cuda.get_elapsed_time": "get_elapsed_time(start_event, end_event)",
    "cupy.cuda.runtime.memcpyAsync": (
        "memcpyAsync(intptr_t dst, intptr_t src, size_t size, int kind, intptr_t stream)"
    ),
    "cupy.cuda.runtime.memsetAsync": (
        "memsetAsync(intptr_t ptr, int value, size_t size, intptr_t stream)"
    ),
    "cupy.cuda.runtime.memGetInfo": "memGetInfo()",
    "cupy.cuda.runtime.getDeviceCount": "getDeviceCount() -> int",
    "cupy.cuda.runtime.getDevice": "getDevice() -> int",
    "cupy.cuda.runtime.getDeviceProperties": "getDeviceProperties(int device)",
    "cupy.cuda.runtime.CUDARuntimeError": "(status)",
    "cupy.cuda.driver.CUDADriverError": "(status)",
    "cupy.cuda.compiler.CompileException": "(msg, source, name, options, backend='nvrtc')",
    "cupy.cuda.compiler.CompileException.get_message": "(self)",
}

ATTRIBUTES = {
    "cupy.RawKernel": ("num_regs", "local_size_bytes", "shared_size_bytes"),
    "cupy.cuda.runtime": ("memcpyHostToDevice", "memcpyDeviceToHost", "memcpyDeviceToDevice"),
}
"""Names without a signature. `ptr` of memory, streams and events is set on instances."""

CUBLASLT = {
    "create": "()",
    "destroy": "(light_handle)",
    "get_version": "()",
    "matmul": (
        "(light_handle, compute_desc, alpha, a, adesc, b, bdesc, beta, c, cdesc, d, ddesc, algo, "
        "workspace, workspace_size_in_bytes, stream)"
    ),
    "matmul_algo_get_heuristic": (
        "(light_handle, operation_desc, adesc, bdesc, cdesc, ddesc, preference, "
        "requested_algo_count, heuristic_results_array, return_algo_count)"
    ),
    "matmul_desc_create": "(compute_type, scale_type)",
    "matmul_desc_destroy": "(matmul_desc)",
    "matmul_desc_set_attribute": "(matmul_desc, attr, buf, size_in_bytes)",
    "matmul_preference_create": "()",
    "matmul_preference_destroy": "(pref)",
    "matmul_preference_set_attribute": "(pref, attr, buf, size_in_bytes)",
    "matrix_layout_create": "(type, rows, cols, ld)",
    "matrix_layout_destroy": "(mat_layout)",
    "cuBLASLtError": "(status)",
}

CUBLASLT_NUMBERS = {
    "MatmulDescAttribute.TRANSA": 3,
    "MatmulDescAttribute.TRANSB": 4,
    "MatmulDescAttribute.EPILOGUE": 7,
    "MatmulDescAttribute.BIAS_POINTER": 8,
    "MatmulDescAttribute.BIAS_DATA_TYPE": 26,
    "MatmulPreferenceAttribute.MAX_WORKSPACE_BYTES": 1,
    "MatmulPreferenceAttribute.REDUCTION_SCHEME_MASK": 3,
    "MatmulPreferenceAttribute.MIN_ALIGNMENT_A_BYTES": 5,
    "MatmulPreferenceAttribute.MIN_ALIGNMENT_B_BYTES": 6,
    "MatmulPreferenceAttribute.MIN_ALIGNMENT_C_BYTES": 7,
    "MatmulPreferenceAttribute.MIN_ALIGNMENT_D_BYTES": 8,
    "Epilogue.BIAS": 4,
    "ReductionScheme.COMPUTE_TYPE": 2,
}

HEURISTIC_RESULT = [
    ("algo", [("data_", "<u8", (8,))]),
    ("workspace_size", "<u8"),
    ("state", "<i4"),
    ("waves_count", "<f4"),
    ("reserved", "<i4", (4,)),
]


def parameter_names(signature: str) -> list[str]:
    """The names of a signature as above, without types, defaults, `self` and markers."""
    inner = signature[signature.index("(") + 1 : signature.rindex(")")]
    names: list[str] = []
    depth, part = 0, ""
    for letter in inner + ",":
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and depth == 0:
            names.append(part.split("=")[0].strip().split(" ")[-1].lstrip("*"))
            part = ""
        else:
            part += letter
    return [name for name in names if name and name != "self"]
