"""What a candidate is compared with: our model's plain training, or its own step at sp 1."""

from typing import Final, Literal

Against = Literal["plain", "self"]
PLAIN: Final = "plain"
ITSELF: Final = "self"
