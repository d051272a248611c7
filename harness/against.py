"""What a candidate is compared with: our model's plain training, or its own step at sp 1."""

from typing import Final, Literal

Against = Literal["plain", "self"]
PLAIN: Final = "plain"
ITSELF: Final = "self"
# In the middle of a sentence.
NAMES: Final = {PLAIN: "plain training", ITSELF: "its own step at sp 1"}
AGAINST_ITSELF = f"compared with {NAMES[ITSELF]}: what is wrong there as well does not show here"
