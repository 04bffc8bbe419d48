"""Acting with a trained policy: needs torch, numpy, pydantic and safetensors only."""
