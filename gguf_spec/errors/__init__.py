"""Exception types of the package.

`str(error)` states the fact with the real values. `error.hint` states how to fix it. Both name
options as in Python; `GgufSpecError.written` gives them with the names of another surface.

The classes:

- GgufSpecError
    - InvalidOptionError (ValueError)
        - OptionConflictError
        - NoSpeculationError
        - NoQuestionError
        - ContextTooShortError
        - ContextFailedError
        - OutputFileError
        - InvalidGrammarError
            - GrammarTooLargeError
        - OffGrammarError
    - ModelError
        - ModelNotFoundError
        - NotAModelError
        - UnsupportedModelError
            - NoGenerationError
            - NoRankingError
    - NotEnoughMemoryError (MemoryError)
    - VocabularyMismatchError
    - EmptyPromptError
    - PromptTooLongError (ValueError)
    - TextTooLongError (ValueError)
    - TemplateError
    - NoInfillError
    - ImageError (ValueError)
    - NoVisionError
    - BusyError
    - ClosedError
    - EventLoopError (RuntimeError)
    - UnsupportedError (AttributeError)
    - DecodeError
    - NoTokenLeftError
    - RollbackError
    - InvalidModelsFileError
    - StoreError
        - NotDownloadedError
        - NotOnHubError
        - AccessDeniedError
        - UnreachableError
        - HubError
        - PackageError
        - NoSpaceError
        - CorruptFileError
    - SessionError
    - BatchFileError
    - NotInstalledError (ImportError)
    - WorkerError
    - LoadCancelledError
    - QuantizeError
"""

from __future__ import annotations

from .base import GgufSpecError
from .image_errors import ImageError, NoVisionError
from .model_errors import (
    BusyError,
    ClosedError,
    DecodeError,
    EmptyPromptError,
    EventLoopError,
    LoadCancelledError,
    ModelError,
    ModelNotFoundError,
    NoGenerationError,
    NoInfillError,
    NoRankingError,
    NotAModelError,
    NotEnoughMemoryError,
    NotInstalledError,
    NoTokenLeftError,
    PromptTooLongError,
    QuantizeError,
    RollbackError,
    SessionError,
    TemplateError,
    TextTooLongError,
    UnsupportedError,
    UnsupportedModelError,
    VocabularyMismatchError,
    WorkerError,
)
from .option_errors import (
    ContextFailedError,
    ContextTooShortError,
    GrammarTooLargeError,
    InvalidGrammarError,
    InvalidOptionError,
    NoQuestionError,
    NoSpeculationError,
    OffGrammarError,
    OptionConflictError,
    OutputFileError,
)
from .store_errors import (
    AccessDeniedError,
    BatchFileError,
    CorruptFileError,
    HubError,
    InvalidModelsFileError,
    NoSpaceError,
    NotDownloadedError,
    NotOnHubError,
    PackageError,
    StoreError,
    UnreachableError,
)

__all__ = [  # noqa: RUF022 -- in the order of the class tree, as the reference lists them
    "GgufSpecError",
    "InvalidOptionError",
    "OptionConflictError",
    "NoSpeculationError",
    "NoQuestionError",
    "ContextTooShortError",
    "ContextFailedError",
    "OutputFileError",
    "InvalidGrammarError",
    "GrammarTooLargeError",
    "OffGrammarError",
    "ModelError",
    "ModelNotFoundError",
    "NotAModelError",
    "UnsupportedModelError",
    "NoGenerationError",
    "NoRankingError",
    "NotEnoughMemoryError",
    "VocabularyMismatchError",
    "EmptyPromptError",
    "PromptTooLongError",
    "TextTooLongError",
    "TemplateError",
    "NoInfillError",
    "ImageError",
    "NoVisionError",
    "BusyError",
    "ClosedError",
    "EventLoopError",
    "UnsupportedError",
    "DecodeError",
    "NoTokenLeftError",
    "RollbackError",
    "InvalidModelsFileError",
    "StoreError",
    "NotDownloadedError",
    "NotOnHubError",
    "AccessDeniedError",
    "UnreachableError",
    "HubError",
    "PackageError",
    "NoSpaceError",
    "CorruptFileError",
    "SessionError",
    "BatchFileError",
    "NotInstalledError",
    "WorkerError",
    "LoadCancelledError",
    "QuantizeError",
]
