"""What `tools/gpu_check.py` measures: each part is a process of its own, with a time of its own."""
