"""The tokenizer of a model folder, as transformers puts it together from the folder's files.

transformers merges tokenizer.json with added_tokens_decoder of tokenizer_config.json, or with special_tokens_map.json
and added_tokens.json, and some of its classes build parts anew. So its own tokenizer is the truth here: where its
serialised form says the same as tokenizer.json, that file is copied byte for byte, and where not, the form is written.
"""

from __future__ import annotations

import copy
import json
import shutil
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from inferir.frontend.checkpoint.model_files import optional_json, there
from inferir.frontend.source.end_ids import TOKEN_KEYS, Claim
from inferir.frontend.source.model_source import ModelSource
from inferir.frontend.tokenizer.tokenizers_library import TokenizerWarning, failures_as, parse, token_text
from inferir.ir.contract.manifest import Decision
from inferir.ir.errors import FrontendError

FILE = "tokenizer.json"
_PARTS = ("added_tokens", "normalizer", "pre_tokenizer", "post_processor", "decoder", "model")
_FLAGS = ("lstrip", "rstrip", "single_word", "normalized")
_SAMPLE = "Text, 12 words:\n\té 日本 🙂 \x07"


class FolderTokenizer:
    """transformers' tokenizer of a folder. Raises `FrontendError` naming the file that is missing or damaged."""

    def __init__(self, source: ModelSource) -> None:
        self.folder = source.path
        self.config = dict(optional_json(source.path / "tokenizer_config.json"))
        self.special_map = optional_json(source.path / "special_tokens_map.json")
        self.added = optional_json(source.path / "added_tokens.json")
        self.own: Any = parse(source.path / FILE) if there(source.path / FILE) else None
        self.merged = _load(source, self._spelled_out())
        self.backend: Any = getattr(self.merged, "backend_tokenizer", None)
        if self.backend is None:
            raise FrontendError(f"the tokenizer of {source.spec} ({type(self.merged).__name__}) has no fast form")
        self.backend.no_truncation()
        self.backend.no_padding()
        # A class of transformers may put together what cannot encode: a vocabulary without its own unknown token.
        with failures_as(
            f"the tokenizer of {source.spec}, as {type(self.merged).__name__} of transformers makes it (is "
            "tokenizer_class in tokenizer_config.json right?), cannot encode text"
        ):
            self.backend.decode(self.backend.encode(_SAMPLE).ids)

    def _spelled_out(self) -> dict[str, Any]:
        """Special tokens that tokenizer_config.json gives as bare objects, which transformers reads elsewhere only."""
        import tokenizers

        out = {}
        for key, token in self.config.items():
            overruled = "added_tokens_decoder" not in self.config and self.special_map.get(key)
            bare = isinstance(token, dict) and isinstance(token.get("content"), str) and "__type" not in token
            if key.endswith("_token") and bare and not overruled:
                flags = {k: token[k] for k in _FLAGS if isinstance(token.get(k), bool)}
                out[key] = tokenizers.AddedToken(token["content"], special=True, **flags)
        return out

    def write(self, dest: Path) -> Decision:
        """Write tokenizer.json and say what it is made of."""
        changed = () if self.own is None else differing_parts(self.own.to_str(), self.backend.to_str())
        if self.own is not None and not changed:
            shutil.copyfile(self.folder / FILE, dest / FILE)
            return Decision(subject="tokenizer", value="as it stands", source=FILE)
        (dest / FILE).write_text(self.backend.to_str(pretty=False), encoding="utf-8")
        kind = type(self.merged).__name__
        if self.own is None:
            value, first = f"made by {kind} of transformers", "vocabulary"
        else:
            value, first = f"{', '.join(changed).replace('_', ' ')} as {kind} of transformers makes them", FILE
        names = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
        files = [first, *(name for name in names if (self.folder / name).is_file())]
        return Decision(subject="tokenizer", value=value, source=", ".join(files))

    def special_tokens(self) -> dict[str, str]:
        """The named special tokens, such as `eos_token`, that transformers ends up with."""
        named: Mapping[str, Any] = self.merged.special_tokens_map
        return {key: str(token) for key, token in named.items() if key.endswith("_token")}

    def claims(self) -> tuple[Claim, ...]:
        """What its end-of-text, end-of-turn and end-of-message tokens say."""
        out = []
        for key, token in self.special_tokens().items():
            number = self.backend.token_to_id(token)
            if key in TOKEN_KEYS and number is not None:
                out.append(Claim(ids=(number,), source=f"{self._origin(key)}: {key}"))
        return tuple(out)

    def _origin(self, key: str) -> str:
        """The file that decides the named token `key`."""
        if "added_tokens_decoder" not in self.config and self.special_map.get(key):
            return "special_tokens_map.json"
        return "tokenizer_config.json" if self.config.get(key) else f"default of {type(self.merged).__name__}"

    def check(self) -> None:
        """Warn of tokens that have another id than a file gives them, and of settings that serving does not have."""
        decoder = self.config.get("added_tokens_decoder")
        if isinstance(decoder, Mapping):
            named = ((token_text(token), number) for number, token in decoder.items())
            self._check_ids(named, "tokenizer_config.json: added_tokens_decoder")
        else:
            self._check_ids(self.added.items(), "added_tokens.json")
        if self.config.get("split_special_tokens") is True:
            _warn("tokenizer_config.json: split_special_tokens is not applied: special tokens in a prompt stay whole")

    def _check_ids(self, stated: Iterable[tuple[Any, Any]], source: str) -> None:
        wrong = []
        for token, number in stated:
            actual = self.backend.token_to_id(token) if isinstance(token, str) else None
            if actual is not None and str(number) != str(actual):
                wrong.append(f"{token!r} the id {number}, but it has {actual}")
        if wrong:
            more = f" ({len(wrong) - 1} more)" if len(wrong) > 1 else ""
            _warn(f"{source} gives {wrong[0]}, as in transformers{more}")


def differing_parts(own: str, merged: str) -> tuple[str, ...]:
    """Which parts of two serialised tokenizers differ. A post-processor that adds nothing counts as none."""
    one, other = json.loads(own), json.loads(merged)
    return tuple(part for part in _PARTS if _plain(part, one.get(part)) != _plain(part, other.get(part)))


def _plain(part: str, value: Any) -> Any:
    nothing = part == "post_processor" and value and value.get("type") == "TemplateProcessing"
    return None if nothing and not value.get("special_tokens") else value


def _load(source: ModelSource, tokens: Mapping[str, Any]) -> Any:
    from inferir.frontend.checkpoint.huggingface import api, quiet

    options: dict[str, Any] = {"trust_remote_code": source.trust_remote_code, "local_files_only": True, **tokens}
    if source.hub_id is not None:  # transformers knows some models by their id
        options["config"] = copy.deepcopy(source.config)
        options["config"]._name_or_path = source.hub_id
    lacks = "" if (source.path / FILE).is_file() else " has no tokenizer.json, and its tokenizer"
    what = f"{source.spec}{lacks or ': its tokenizer'} cannot be loaded by transformers"
    with failures_as(what), quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return api().auto_tokenizer.from_pretrained(str(source.path), **options)
        except ValueError as error:
            if "custom code" not in str(error) or source.trust_remote_code:
                raise
            reason = "it is implemented by code of its own, which is not run unless trust_remote_code is set"
            raise FrontendError(f"{what}: {reason}") from error


def _warn(message: str) -> None:
    warnings.warn(message, TokenizerWarning, stacklevel=4)
