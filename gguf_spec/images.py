"""Images for prompts: checks of image files, without loading a model.

from gguf_spec.images import read_image

image = read_image("cat.jpg")  # type and size are checked; nothing is decoded
llm.generate("What is this?", images=[image])
"""

from .llama.image_file import Image, read_image

__all__ = ["Image", "read_image"]
