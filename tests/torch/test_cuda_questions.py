"""Libraries' questions to torch about CUDA are answered, or are errors, and end no process: tools/setup_torch's Python has
stubs in the place of NVIDIA's libraries."""

import subprocess
import sys

QUESTIONS = ["torch.cuda.is_current_stream_capturing()", "torch.cuda.is_available()", "torch.cuda.device_count()", "torch.backends.cudnn.version()",
             "torch.backends.cudnn.is_available()", "torch.cuda.nccl.version()", "torch.cuda.get_device_properties(0)", "torch.cuda.synchronize()",
             "torch.zeros(2, device='cuda')", "torch.zeros(2).pin_memory()", "torch.cuda.memory_allocated()", "torch._C._cuda_getDriverVersion()",
             "torch.cuda.get_arch_list()", "torch.cuda.is_bf16_supported()"]
ASK = """
import sys, torch
for question in sys.argv[1:]:
    print("asked", question, flush=True)
    try:
        print(eval(question))
    except Exception as error:
        print(repr(error))
"""


def test_questions_about_cuda_end_no_process():
    done = subprocess.run([sys.executable, "-c", ASK, *QUESTIONS], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.count("asked") == len(QUESTIONS), (done.stdout[-200:], done.stderr[-500:])
    first_answer = done.stdout.split("asked")[1]
    assert "False" in first_answer or "no CUDA-capable device is detected" in first_answer     # of a torch without, or with CUDA
