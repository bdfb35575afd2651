"""The pipeline, from a captured graph to a graph of kernels: one list, in phases."""

from __future__ import annotations

from functools import cache

from inferir.passes.canonicalise.canonicalise import Canonicalise
from inferir.passes.canonicalise.cse import ShareCommon
from inferir.passes.canonicalise.elide_roundings import ElideRoundings
from inferir.passes.canonicalise.fold_weights import FoldWeights
from inferir.passes.context import Pass, PassContext, PassOptions
from inferir.passes.fuse.fuse_regions import FuseRegions
from inferir.passes.insert.gather_logit_rows import GatherLogitRows
from inferir.passes.insert.insert_argmax import InsertArgmax
from inferir.passes.insert.insert_kv import InsertKv
from inferir.passes.insert.insert_sampling import InsertSampling
from inferir.passes.insert.ragged_tokens import RaggedTokens
from inferir.passes.insert.tabulate_positions import TabulatePositions
from inferir.passes.layout.pack_weights import PackWeights
from inferir.passes.merge.merge_gate_up import MergeGateUp
from inferir.passes.merge.merge_qkv import MergeQkv
from inferir.passes.plugin_passes import added, added_names
from inferir.passes.recognise.recognise_gated_act import RecogniseGatedAct
from inferir.passes.recognise.recognise_rms_norm import RecogniseRmsNorm
from inferir.passes.recognise.recognise_rotary import RecogniseRotary
from inferir.passes.recognise.recognise_softcap import RecogniseSoftcap


def build_pipeline(options: PassOptions, context: PassContext) -> list[Pass]:
    """The passes for an optimisation level, without the disabled ones. What a pass is for is its `why`.

    Raises `PassError` for one of another distribution that is asked for by name and cannot be used.
    """
    return [p for phase in build_phases(options, context).values() for p in phase]


def build_phases(options: PassOptions, context: PassContext) -> dict[str, list[Pass]]:
    """The passes of `build_pipeline` by phase; those of other distributions run at the end of theirs."""
    others = added(options, context, own_names())
    return {
        phase: [p for wanted, p in [*own, *others.get(phase, ())] if wanted and p.name not in options.disabled]
        for phase, own in own_phases(options, context).items()
    }


def own_phases(options: PassOptions, context: PassContext) -> dict[str, list[tuple[bool, Pass]]]:
    """All passes of this system, and whether the level asks for them."""
    level = options.opt_level
    always, optimising, rounding_less = True, level >= 1, level >= 2
    return {
        "canonicalise": [
            (always, Canonicalise()),
            (always, ShareCommon()),
            (always, RaggedTokens()),
            (always, Canonicalise()),
            (always, ShareCommon()),
            (always, TabulatePositions(options.limits.max_model_len)),
        ],
        "recognise": [
            (optimising, RecogniseRmsNorm()),
            (optimising, RecogniseRotary()),
            (optimising, RecogniseGatedAct()),
            (optimising, RecogniseSoftcap()),
        ],
        "merge": [
            (optimising, MergeGateUp(context)),
            (optimising, MergeQkv(context)),
        ],
        "insert": [
            (always, InsertKv(options.limits.block_size, options.limits.max_model_len, context)),
            (always, GatherLogitRows(through_layer=level >= 3)),
            (always, InsertSampling(options.vocab_size)),
        ],
        "lay out": [
            (always, PackWeights(interleave=optimising)),
            (rounding_less, InsertArgmax(options.features, options.vocab_size, context)),
            (always, FoldWeights(context)),
            (always, Canonicalise()),
            (always, ShareCommon()),
        ],
        "fuse": [
            (always, FuseRegions(optimising, context)),
            (rounding_less, ElideRoundings()),
        ],
    }


@cache
def own_names() -> tuple[str, ...]:
    """Names of the passes of this system, in order of first use."""
    phases = own_phases(PassOptions(opt_level=3), PassContext())
    return tuple(dict.fromkeys(p.name for passes in phases.values() for _, p in passes))


def pass_names() -> tuple[str, ...]:
    """Names of all passes: this system's in order of first use, then those of other distributions, which are not loaded
    for that.
    """
    return tuple(dict.fromkeys((*own_names(), *added_names())))
