"""Shards of a training, put together as safetensors without the trainer, torch or its memory."""
