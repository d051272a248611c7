"""The families of models that steps of recipes train, as a setting of these steps.

Their attention goes through transformers' interface, which the packages make their own. A Mistral
without a window is a Llama.
"""

from harness.case.settings import Settings

OF_VALUES: Settings = {"family": ("llama", "qwen3", "qwen3-moe", "deepseek-v3")}
# transformers has no Gemma 3 with a number for each token.
OF_POLICIES: Settings = {"family": (*OF_VALUES["family"], "gemma-3")}
