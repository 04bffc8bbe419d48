"""A picture inside a page."""

from __future__ import annotations

import base64
import io

import numpy as np


def address(picture: np.ndarray) -> str:
    """(H, W, 3) uint8 -> an address that holds it as a JPEG."""
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(picture).save(stream, "JPEG", quality=80)
    return f"data:image/jpeg;base64,{base64.b64encode(stream.getvalue()).decode()}"
