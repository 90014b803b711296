"""Checkpoint folders in Hugging Face's format, checked for faults that transformers loads silently.

transformers fills tensors that a checkpoint lacks with random numbers and ignores those that its config does not
describe; the model then generates other text. Both are errors here, like every exception of the libraries that load.
Only safetensors are read, because pickled weights run code, and code in a checkpoint is never run.
"""

from __future__ import annotations

import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PretrainedConfig, PreTrainedModel

from turbospec import UserError
from turbospec.files import read_json
from turbospec_engine import dflash_head, eagle3_head
from turbospec_engine.dflash_head import DFlashConfig
from turbospec_engine.eagle3_head import Eagle3Config
from turbospec_engine.parallel_head import ParallelConfig, named_mask_token

CONFIG_BYTES = 2**20
"""Largest config file."""
MAX_COUNT = 2**20
"""Largest value of a config field that counts something: transformers makes an object for each."""
COUNTS = ("num_", "n_")
"""Beginnings of the names of such fields."""
WEIGHTS_IN_A_BYTE = 2
"""In the densest format, of 4 bits."""
FLOATS = ("BF16", "F16", "F32", "F64")
"""Types of weights that can be converted to the engine's."""
SHOWN_NAMES = 3
PICKLED_MASK = "mask_embedding.pt"
"""Some DFlash heads have an embedding of the mask token in this file, in place of the target's."""
TRIAL = "def f(x): return x"
HEADS = {"eagle": "an EAGLE head", "dflash": "a DFlash head"}
"""What the names of heads' architectures contain, and what errors call them."""


def load_model(
    role: str, folder: Path, *, dtype: torch.dtype, device: str, attention: str | None = None, heads: bool = False
) -> PreTrainedModel:
    """A causal language model, in evaluation mode.

    Args:
        role: what errors call it: "target" or "drafter".
        folder: the checkpoint.
        dtype: type of its weights in memory.
        device: where they go.
        attention: name of an implementation that is registered with transformers; None: transformers' own choice.
        heads: whether the folder may hold a head; the model is then a `Head`.

    Raises:
        UserError: the folder has no such model, or its weights are not those that its config describes: some are
            absent, superfluous, of another shape, or not finite numbers.
    """
    _check_files(role, folder)
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    with _one_line(f"{folder}: cannot load the {role}", "name a checkpoint of a causal language model"):
        config = AutoConfig.from_pretrained(folder, **options)
        if family := next((f for f in HEADS for name in config.architectures or () if f in str(name).lower()), None):
            kind = _head_kind(config) if heads else None
            if kind is None:
                raise UserError(
                    f"{folder}: {HEADS[family]}, which this engine cannot run as {role}; name a causal model"
                )
            if kind is DFlashConfig and (folder / PICKLED_MASK).exists():
                raise UserError(
                    f"{folder}: a DFlash head with {PICKLED_MASK}, which may run code; use another checkpoint"
                )
            config = kind.of(config)
        _check_size(role, folder, config)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            attn_implementation=attention,
            use_safetensors=True,
            # Otherwise the error does not name them.
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            **options,
        )
        model: PreTrainedModel = loaded[0]
        _check_loaded(role, folder, loaded[1])
        _check_finite(role, folder, model, dtype)
        model.to(torch.device(device))  # pyright: ignore[reportArgumentType]
    return model.eval()


def load_tokenizer(role: str, folder: Path) -> Any:
    """The Hugging Face tokenizer of a checkpoint.

    Raises:
        UserError: it is absent or broken, or not one of the fast kind.
    """
    with _one_line(f"{folder}: cannot load the {role}'s tokenizer", "add the tokenizer.json of its model"):
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        if not getattr(tokenizer, "is_fast", False):
            raise UserError(f"{folder}: the {role}'s tokenizer has no tokenizer.json; convert it to a fast tokenizer")
        # Some broken settings show only in use.
        tokenizer.decode(tokenizer(TRIAL)["input_ids"])
    return tokenizer


def eos_token_ids(role: str, folder: Path, model: PreTrainedModel) -> frozenset[int]:
    """The tokens that end an output.

    Raises:
        UserError: one of them is no token of the model.
    """
    generation = getattr(model, "generation_config", None)
    eos: Any = generation.eos_token_id if generation is not None else None
    config = model.config.get_text_config()
    if eos is None:
        eos = config.eos_token_id
    found: list[Any] = [] if eos is None else [*eos] if isinstance(eos, list | tuple) else [eos]
    for token in found:
        if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < config.vocab_size:
            raise UserError(
                f"{folder}: eos_token_id {token!r} of the {role} is no token from 0 to {config.vocab_size - 1}; "
                "correct generation_config.json or config.json"
            )
    return frozenset(found)


@contextmanager
def _one_line(failed: str, mend: str) -> Iterator[None]:
    """Turn whatever the libraries raise into a UserError: their exceptions have no common class."""
    try:
        yield
    except (UserError, MemoryError):
        raise
    except torch.OutOfMemoryError as error:
        raise UserError(f"{failed}: the GPU has too little memory; use a smaller model or dtype") from error
    except Exception as error:
        raise UserError(f"{failed} ({_reason(error)}); {mend}") from error
    except BaseException as error:
        # tokenizers' panics are no Exceptions.
        if type(error).__name__ != "PanicException":
            raise
        raise UserError(f"{failed} ({_reason(error)}); {mend}") from error


def _reason(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def _head_kind(config: PretrainedConfig) -> type[Eagle3Config | ParallelConfig | DFlashConfig] | None:
    """The config of the kind of head that a config describes; None for a kind that the engine does not run."""
    architecture = (config.architectures or [None])[0]
    if architecture == dflash_head.ARCHITECTURE:
        return DFlashConfig
    if architecture in eagle3_head.ARCHITECTURES:
        return Eagle3Config if named_mask_token(config) is None else ParallelConfig
    return None


def _check_files(role: str, folder: Path) -> None:
    """Check the config files, and that nothing in the folder is a pipe or a device, on which loading would hang."""
    try:
        entries = [*folder.iterdir()] if (folder / "config.json").exists() else []
        modes = {entry: entry.stat().st_mode for entry in entries if entry.exists()}
    except (OSError, ValueError) as error:  # ValueError: a NUL character
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{folder}: cannot read the {role} ({reason}); name a checkpoint folder") from error
    if not entries:
        raise UserError(f"{folder}: no {role} checkpoint here (no config.json); name a checkpoint folder")
    for entry, mode in modes.items():
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            raise UserError(f"{entry}: is a pipe, socket or device in the {role}'s checkpoint; remove it")
    for name in ("config.json", "generation_config.json"):
        if folder / name not in modes:
            continue
        document = read_json(folder / name, f"{role} config", limit=CONFIG_BYTES, hint="name another checkpoint")
        if not isinstance(document, dict):
            raise UserError(f"{folder / name}: not a {role} config (must be a JSON object); name another checkpoint")
        for field, value in cast("dict[str, Any]", document).items():
            if field.startswith(COUNTS) and isinstance(value, int) and not 0 <= value <= MAX_COUNT:
                raise UserError(f"{folder / name}: {field} = {value} is out of range; correct the {role}'s config")


def _check_size(role: str, folder: Path, config: PretrainedConfig) -> None:
    """Check that a config describes no larger model than the weights can hold, before memory is taken for it.

    Raises:
        UserError: it does, or there are no weights.
        Exception: what safetensors and transformers raise on weights and configs that are broken.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise UserError(f"{folder}: the {role} has no weights in safetensors; convert its checkpoint")
    types: dict[str, str] = {}
    for file in files:
        with safe_open(file, "pt") as tensors:
            types |= {name: tensors.get_slice(name).get_dtype() for name in tensors.keys()}  # noqa: SIM118
    layers: int = config.get_text_config().num_hidden_layers
    if layers > len(types):
        raise UserError(
            f"{folder}: the {role}'s config describes {layers} layers, but its weights have {len(types)} tensors; "
            "use the config that belongs to the weights"
        )
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    described = sum(parameter.numel() for parameter in model.parameters())
    size = sum(file.stat().st_size for file in files)
    if described > WEIGHTS_IN_A_BYTE * size:
        raise UserError(
            f"{folder}: the {role}'s config describes {described:.3g} weights, but its files hold {size:.3g} bytes; "
            "use the config that belongs to the weights"
        )
    if getattr(config, "quantization_config", None) is None:
        other = {name: types[name] for name, _ in model.named_parameters() if types.get(name, "F32") not in FLOATS}
        if other:
            raise UserError(
                f"{folder}: the {role}'s weights are no floating-point numbers ({_some(other)}: "
                f"{next(iter(other.values()))}); use a checkpoint in {', '.join(FLOATS)}"
            )


def _check_loaded(role: str, folder: Path, report: dict[str, Any]) -> None:
    """Check what transformers reports of a load. Tied weights and others that it knows to be optional are not in it."""
    mend = "use weights and config that belong together"
    reshaped = {name: (tuple(stored), tuple(wanted)) for name, stored, wanted in report["mismatched_keys"]}
    if reshaped:
        stored, wanted = next(iter(reshaped.values()))
        raise UserError(
            f"{folder}: the {role}'s weights have other shapes than its config describes ({_some(reshaped)}: {stored}, "
            f"not {wanted}); {mend}"
        )
    if lacking := sorted(report["missing_keys"]):
        raise UserError(f"{folder}: the {role}'s weights lack what its config describes ({_some(lacking)}); {mend}")
    if superfluous := sorted(report["unexpected_keys"]):
        raise UserError(
            f"{folder}: the {role}'s weights have tensors that its config does not describe ({_some(superfluous)}); "
            f"{mend}"
        )
    if report["error_msgs"]:
        raise UserError(f"{folder}: cannot load the {role}'s weights ({report['error_msgs'][0]}); {mend}")


def _check_finite(role: str, folder: Path, model: PreTrainedModel, dtype: torch.dtype) -> None:
    for name, weights in model.named_parameters():
        if not weights.numel() or not weights.is_floating_point():
            continue
        low, high = torch.aminmax(weights)  # NaN where any weight is
        if not torch.isfinite(low + high) and not (torch.isfinite(low) and torch.isfinite(high)):
            raise UserError(
                f"{folder}: the {role}'s weights have values that are not finite in {dtype} ({name}); "
                "use another checkpoint or dtype"
            )


def _some(names: Collection[str]) -> str:
    """The first names of some, and how many there are."""
    shown = ", ".join([*names][:SHOWN_NAMES])
    return shown if len(names) <= SHOWN_NAMES else f"{shown} and {len(names) - SHOWN_NAMES} more"
