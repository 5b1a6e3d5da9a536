"""What a directory with a LoRA adapter holds; known without arrays, for those who only look for one."""

from typing import Final

CONFIG: Final = "adapter_config.json"
WEIGHTS: Final = "adapter_model.safetensors"
