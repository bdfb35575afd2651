"""Typed errors.

Every error a user can meet derives from `InferirError`. Its message is one line that names what is wrong (the op,
layer, file or field) and, where there is something to do about it, says what to do next. The command line prints the
message and exits with `exit_code`.
"""


class InferirError(Exception):
    """Base of all errors raised on purpose by Inferir. details: lines that say more, for a command to print below."""

    exit_code = 1
    details: tuple[str, ...] = ()


class MissingExtraError(InferirError):
    """A command needs libraries that are not installed; the message names one, and the extra that brings them."""


class IRError(InferirError):
    """A graph, type or op is malformed."""


class VerifyError(IRError):
    """The verifier found a broken invariant; the message names node and op."""


class ParseError(IRError):
    """IR text could not be parsed; the message carries the line number."""


class FrontendError(InferirError):
    """A model could not be read or traced."""


class ModelNotFoundError(FrontendError):
    """The model folder, file or hub id does not exist."""


class UntraceableError(FrontendError):
    """The model's forward cannot be captured; the message names module and op."""


class WeightError(FrontendError):
    """A checkpoint tensor is missing, unused, truncated or of the wrong shape; the message names tensor and file."""


class PassError(InferirError):
    """A pass cannot handle the graph; the message names pass and op."""


class CodegenError(InferirError):
    """No backend can lower a region, or a build failed; the message names region and reason."""

    def __init__(self, message: str, details: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.details = details


class PluginError(InferirError):
    """An entry of a registry does not exist, is defined twice or cannot be used; the message names it."""


class CacheError(InferirError):
    """The compile cache cannot be read or written; the message names the path."""


class TuningError(InferirError):
    """A file of tuning records is missing, malformed, of another format, or cannot be written; the message names it."""


class ArtifactError(InferirError):
    """An artifact is incomplete, damaged or of another format version; the message names the file."""


class TargetError(InferirError):
    """The artifact or option asks for a target this machine or build lacks; the message names the feature."""


class EngineError(InferirError):
    """The engine cannot serve a request or was misconfigured."""


class RequestError(EngineError):
    """A request's parameter is invalid; the message names the field."""

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class QueueFullError(EngineError):
    """Too many requests are waiting already; nothing is wrong with this one. `waiting` says how many."""

    def __init__(self, message: str, waiting: int) -> None:
        super().__init__(message)
        self.waiting = waiting
