"""A task's signature: arguments from the wire, validated and converted by its annotations; resources of the worker's
lifespans, passed as parameters; and results, encoded as plain wire values.

As much as possible is computed at declaration: one converter for each parameter. Binding a call
then costs a few microseconds; arguments that already have the annotated built-in type cost one comparison.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import pydantic_core
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError, PydanticUndefinedAnnotation, PydanticUserError
from pydantic_core import PydanticSerializationError

from ...schemas.errors.base import InvalidArguments, InvalidResult, InvalidSettings
from ...schemas.handles import item_annotation
from ...schemas.text import known_names, shown
from ...schemas.wire.codec import ATOMS, pack
from ...schemas.wire.plain_values import SCALARS, close_awaitable, is_plain, pack_plain, to_wire
from ..context.task_context import current_task
from .base64_arguments import Decoder, decoder_for


class Resource:
    """Marks a parameter that callers do not pass: the worker passes what a `@pool.lifespan` function yielded.

    ```python
    @pool.task
    async def store(name: str, db: Annotated[Database, gangline.Resource]) -> None: ...
    ```

    Callers of the task call `store(name)`. Code that calls the function itself, as tests do, passes both. Type
    checkers let callers leave it out only if it has a default: see `resource`.
    """


class _Unfilled:
    """Default of a parameter that the worker fills in."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"this resource was not passed ({name!r} was asked of it): a worker passes it, and so must code that calls "
            "the function itself"
        )

    def __repr__(self) -> str:
        return "gangline.resource()"


_UNFILLED: Final[Any] = _Unfilled()


def resource() -> Any:
    """Default of a parameter that callers do not pass: the worker passes what a `@pool.lifespan` function yielded. The
    parameter's annotation says which: it is a class.

    ```python
    @pool.task
    async def store(name: str, db: Database = gangline.resource()) -> None: ...

    await client.call(store, name="a")
    ```
    """
    return _UNFILLED


class ResolvedResources(NamedTuple):
    """A parameter whose value the worker provides."""

    name: str
    kind: type[Any]
    place: int | None
    """Its position among the positional parameters; None: keyword-only."""


def resource_kind(annotation: Any, default: Any, where: str) -> type[Any] | None:
    """The type of resource that a parameter asks for by its annotation or its default; None: it is an ordinary
    parameter.

    Raises:
        InvalidSettings: it asks for a resource, but not by a class.
    """
    kind: Any = annotation
    marks: list[Any] = []
    if typing.get_origin(annotation) is typing.Annotated:
        kind, *marks = typing.get_args(annotation)
    if default is not _UNFILLED and not any(mark is Resource or isinstance(mark, Resource) for mark in marks):
        return None
    if not isinstance(kind, type):
        raise InvalidSettings(f"{where}: a resource is asked for by its class, not by {kind}")
    return kind


def filling(function: Callable[..., Any], parameters: tuple[ResolvedResources, ...]) -> Callable[..., Any]:
    """The function without these parameters, which are filled in when it is called in a task."""

    @functools.wraps(function)
    def filled(*args: Any, **kwargs: Any) -> Any:
        context = current_task()
        places = list(args)
        for name, kind, place in parameters:
            if place is not None and place <= len(places):
                places.insert(place, context.resource(kind))
            else:
                kwargs[name] = context.resource(kind)
        return function(*places, **kwargs)

    return filled


Converter = Callable[[Any], Any]
_EXACT = frozenset({int, str, float, bool, bytes, dict, list})
_SHOULD_BE = "Input should be "
"""How most of pydantic's messages begin."""

_Kind = inspect._ParameterKind


class Parameter:
    """One parameter, and the conversion of its value."""

    __slots__ = ("adapter", "annotation", "convert", "decode", "exact", "name")

    def __init__(self, name: str, annotation: Any, where: str) -> None:
        self.name = name
        self.annotation = annotation
        self.exact: type | None = annotation if isinstance(annotation, type) and annotation in _EXACT else None
        """A value of exactly this type needs no conversion."""
        self.convert: Converter | None = None
        """None: any value is accepted."""
        self.decode: Decoder | None = None
        """Turns base64 text into bytes where the annotation has bytes; for arguments that came as JSON."""
        self.adapter: TypeAdapter[Any] | None = None
        if annotation is not Any and annotation is not inspect.Parameter.empty:
            self.adapter = adapter_for(annotation, f"{where}: parameter {name!r}")
            self.convert = self.adapter.validator.validate_python
            self.decode = decoder_for(annotation)


def adapter_for(annotation: Any, where: str) -> TypeAdapter[Any]:
    """A pydantic adapter.

    Raises:
        InvalidSettings: pydantic has no conversion for the annotation.
        NameError: it refers to a name that does not exist yet.
    """
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(annotation)
        if not adapter.pydantic_complete:
            adapter.rebuild(raise_errors=True)
        return adapter
    except PydanticUndefinedAnnotation as error:
        raise NameError(error.message) from error
    except (PydanticSchemaGenerationError, PydanticUserError, TypeError) as error:
        first_line = str(error).partition("\n")[0]
        raise InvalidSettings(
            f"{where} has the annotation {shown_type(annotation)}, which cannot come from the wire: {first_line}"
        ) from error


class Signature:
    """The parameters of one task."""

    __slots__ = ("_by_name", "_converted", "_exact", "_function", "_only_by_place", "_places", "_required", "_rest",
                 "_rest_named", "_where", "filled", "resolved", "returns")  # fmt: skip

    def __init__(self, function: Callable[..., Any], where: str, namespace: dict[str, Any] | None = None) -> None:
        """Resolve annotations now if possible; otherwise `resolve()` does so when the module is complete.

        Args:
            function: the task.
            where: its full name, for error texts.
            namespace: local names where the task is declared, for annotations that name local classes.

        Raises:
            InvalidSettings: the signature is not supported, or an annotation cannot be converted.
        """
        self._function = function
        self._where = where
        self._places: list[Parameter] = []
        """Positional parameters, in order."""
        self._by_name: dict[str, Parameter] = {}
        self._only_by_place: tuple[str, ...] = ()
        self._required: tuple[tuple[int, str], ...] = ()
        """Position (a huge number for keyword-only ones) and name of each parameter without default."""
        self._exact: list[type] | None = None
        """Types of the positional arguments that need no conversion at all; None: this does not apply."""
        self._converted: list[Converter] | None = None
        """How the arguments are converted, if all can be positional, and none is accepted as it is; None: this does not
        apply."""
        self._rest: Parameter | None = None
        self._rest_named: Parameter | None = None
        self.resolved = False
        """Whether all annotations are resolved; only then are `returns` and `filled` valid."""
        self.filled: tuple[ResolvedResources, ...] = ()
        """Parameters that the worker fills in, and that no caller can pass."""
        self.returns: Any = inspect.Parameter.empty
        _refuse_methods(function, where)
        try:
            self._resolve(namespace)
        except NameError:
            pass  # A class defined further down in the module; resolve() reports it if it is missing.

    def resolve(self) -> None:
        """Raises InvalidSettings if an annotation names something that does not exist."""
        if self.resolved:
            return
        try:
            self._resolve(None)
        except NameError as error:
            raise InvalidSettings(
                f"{self._where}: an annotation cannot be resolved: {error}; define it at the top level of the module"
            ) from error

    def _resolve(self, namespace: dict[str, Any] | None) -> None:
        hints = typing.get_type_hints(self._function, localns=namespace, include_extras=True)
        places: list[Parameter] = []
        by_name: dict[str, Parameter] = {}
        only_by_place: list[str] = []
        required: list[tuple[int, str]] = []
        filled: list[ResolvedResources] = []
        rest = rest_named = None
        for declared in inspect.signature(self._function).parameters.values():
            is_required = declared.default is inspect.Parameter.empty
            where = f"{self._where}: parameter {declared.name!r}"
            resource = resource_kind(hints.get(declared.name), declared.default, where)
            if resource is not None:
                filled.append(_filled(declared, resource, len(places) + len(filled), self._where))
                continue
            parameter = Parameter(declared.name, hints.get(declared.name, Any), self._where)
            match declared.kind:
                case _Kind.VAR_POSITIONAL:
                    rest = parameter
                case _Kind.VAR_KEYWORD:
                    rest_named = parameter
                case _Kind.KEYWORD_ONLY:
                    by_name[declared.name] = parameter
                    if is_required:
                        required.append((1 << 30, declared.name))
                case kind:
                    if is_required:
                        required.append((len(places), declared.name))
                    places.append(parameter)
                    by_name[declared.name] = parameter
                    if kind is _Kind.POSITIONAL_ONLY:
                        only_by_place.append(declared.name)
        self._places, self._by_name, self._only_by_place = places, by_name, tuple(only_by_place)
        self._required, self._rest, self._rest_named = tuple(required), rest, rest_named
        self.filled = tuple(filled)
        exact = [parameter.exact for parameter in places if parameter.exact is not None]
        if len(exact) == len(places) and len(by_name) == len(places):
            self._exact = exact
        converters = [each.convert for each in places if each.convert is not None]
        if len(converters) == len(places) == len(by_name):
            self._converted = converters
        self.returns = hints.get("return", inspect.Parameter.empty)
        self.resolved = True

    @property
    def function(self) -> Callable[..., Any]:
        """The task, as declared."""
        return self._function

    def parameters(self) -> list[Parameter]:
        """Parameters that callers can give, in the order in which they are declared."""
        rest = [each for each in (self._rest, self._rest_named) if each is not None]
        known = {each.name: each for each in (*self._by_name.values(), *rest)}
        return [known[name] for name in inspect.signature(self._function).parameters if name in known]

    def bind(
        self, args: list[Any] | None, kwargs: dict[str, Any] | None, json: bool
    ) -> tuple[list[Any], dict[str, Any]]:
        """Convert; see DeclaredTask.bind."""
        if not kwargs and args is not None and self._exact is not None:
            kinds = [type(args[0])] if len(args) == 1 else [*map(type, args)]  # one is common, and this is faster
            if kinds == self._exact:
                return args, {}  # all positional, and each of exactly its type
        converted = self._converted
        if not kwargs and not json and args is not None and converted is not None and len(args) == len(converted):
            try:
                if len(args) == 1:
                    return [converted[0](args[0])], {}
                return [convert(value) for convert, value in zip(converted, args, strict=True)], {}
            except (ValidationError, ValueError):
                pass  # there may be another way; otherwise the error is made below
        if not self.resolved:
            self.resolve()
        problems: list[_Problem] = []
        bound = self._by_place(args, json, problems) if args else []
        given = len(bound)
        named = self._by_keyword(kwargs, given, json, problems) if kwargs else {}
        for place, name in self._required:
            if place >= given and (not kwargs or name not in kwargs):
                raise self._missing(given, kwargs)
        if problems:
            raise self._wrong(problems)
        if self._only_by_place and named:
            self._move_by_place(bound, named)
        return bound, named

    def _by_place(self, args: list[Any], json: bool, problems: list[_Problem]) -> list[Any]:
        bound: list[Any] = []
        parameters = self._places if len(args) <= len(self._places) else self._places_for(len(args))
        for parameter, value in zip(parameters, args, strict=False):
            if parameter.exact is type(value):
                bound.append(value)
                continue
            try:
                bound.append(_convert(parameter, value, json))
            except (ValidationError, ValueError) as error:
                bound.append(None)
                problems.append(_Problem(parameter.name, value, error))
        return bound

    def _by_keyword(self, kwargs: dict[str, Any], given: int, json: bool, problems: list[_Problem]) -> dict[str, Any]:
        named: dict[str, Any] = {}
        for name, value in kwargs.items():
            parameter = self._by_name.get(name) or self._unknown(name)
            if given and parameter in self._places[:given]:
                text = f"{name!r} was given twice, by place and by name"
                raise self._refuse(text, {name: "one value, by place or by name"})
            if parameter.exact is type(value):
                named[name] = value
                continue
            try:
                named[name] = _convert(parameter, value, json)
            except (ValidationError, ValueError) as error:
                problems.append(_Problem(name, value, error))
        return named

    # -- what is out of the ordinary ------------------------------------------------------------------------------

    def _places_for(self, given: int) -> list[Parameter]:
        if self._rest is None:
            most = len(self._places)
            takes = (
                f"takes {most} argument{'s' if most != 1 else ''} by place" if most else "takes no arguments by place"
            )
            raise self._refuse(f"{takes}, {given} were given")
        return self._places + [self._rest] * (given - len(self._places))

    def _unknown(self, name: str) -> Parameter:
        if self._rest_named is not None:
            return self._rest_named
        expected = f"one of the parameters {', '.join(self._by_name)}" if self._by_name else "no argument by name"
        raise self._refuse(f"no parameter {name!r}; {known_names(name, self._by_name)}", {name: expected})

    def _missing(self, given: int, kwargs: dict[str, Any] | None) -> InvalidArguments:
        names = [name for place, name in self._required if place >= given and name not in (kwargs or {})]
        listed = ", ".join(repr(name) for name in names)
        expected = {name: shown_type(self._by_name[name].annotation) for name in names}
        return self._refuse(f"missing parameter{'s' if len(names) > 1 else ''} {listed}", expected)

    def _move_by_place(self, bound: list[Any], named: dict[str, Any]) -> None:
        """Python takes positional-only parameters only by position; the wire may name them."""
        parameters = inspect.signature(self._function).parameters
        last = max((place for place, name in enumerate(self._only_by_place) if name in named), default=-1)
        for place in range(len(bound), last + 1):
            name = self._only_by_place[place]
            bound.append(named.pop(name) if name in named else parameters[name].default)

    def _wrong(self, problems: list[_Problem]) -> InvalidArguments:
        faults = [fault for problem in problems for fault in problem.faults()]
        text = "; ".join(f"{name}: {what}, given {value}" for name, what, value in faults)
        facts = [
            {"parameter": name, "expected": what.removeprefix(_SHOULD_BE), "given": value}
            for name, what, value in faults
        ]
        return InvalidArguments(f"{self._where}: {text}", details={"problems": facts})

    def _refuse(self, text: str, expected: Mapping[str, str] | None = None) -> InvalidArguments:
        """`expected`: what should have been given, by parameter."""
        problems = [{"parameter": name, "expected": what, "given": None} for name, what in (expected or {}).items()]
        return InvalidArguments(f"{self._where}: {text}", details={"problems": problems} if problems else None)


def _filled(declared: inspect.Parameter, kind: type[Any], place: int, where: str) -> ResolvedResources:
    if declared.kind is _Kind.KEYWORD_ONLY:
        return ResolvedResources(declared.name, kind, None)
    if declared.kind is _Kind.POSITIONAL_OR_KEYWORD:
        return ResolvedResources(declared.name, kind, place)
    raise InvalidSettings(f"{where}: parameter {declared.name!r} cannot be filled in: it cannot be passed by name")


class _Problem(typing.NamedTuple):
    name: str
    value: Any
    error: Exception

    def faults(self) -> list[tuple[str, str, str]]:
        """Parameter (with the path inside it), expectation and given value, for each fault."""
        if not isinstance(self.error, ValidationError):
            return [(self.name, str(self.error), shown(self.value))]
        return [
            (".".join([self.name, *map(str, item["loc"])]), item["msg"], shown(item["input"]))
            for item in self.error.errors(include_url=False, include_context=False)
        ]


def _convert(parameter: Parameter, value: Any, json: bool) -> Any:
    if parameter.convert is None:
        return value
    if json and parameter.decode is not None:
        value = parameter.decode(value)
    try:
        return parameter.convert(value)
    except ValidationError:
        return _convert_strictly_typed(parameter, value)


def _convert_strictly_typed(parameter: Parameter, value: Any) -> Any:
    """Models in pydantic's strict mode accept text for a date only from JSON, which all wire values resemble. A second
    attempt costs nothing where the first one passes."""
    assert parameter.adapter is not None
    try:
        text = pydantic_core.to_json(value)
    except (ValueError, TypeError):
        return parameter.adapter.validate_python(value)
    try:
        return parameter.adapter.validate_json(text)
    except ValidationError:
        return parameter.adapter.validate_python(value)  # its errors show the values as given


def _refuse_methods(function: Callable[..., Any], where: str) -> None:
    first = next(iter(inspect.signature(function).parameters), None)
    if first in ("self", "cls"):
        raise InvalidSettings(f"{where}: methods cannot be tasks; declare a plain function without {first!r}")


def shown_type(annotation: Any) -> str:
    if annotation is inspect.Parameter.empty:
        return "Any"
    return annotation.__name__ if isinstance(annotation, type) else str(annotation).replace("typing.", "")


class ResultEncoder:
    """Turns what one task returns (or each item it yields) into wire values."""

    __slots__ = (
        "_adapter",
        "_dump",
        "_exact",
        "_in_one_step",
        "_model",
        "_resolved",
        "_signature",
        "_streams",
        "_where",
    )

    def __init__(self, signature: Signature, where: str, *, streams: bool) -> None:
        self._signature = signature
        self._where = where
        self._streams = streams
        self._exact: type | None = None
        """A result of exactly this type is as annotated."""
        self._model: type | None = None
        """A model of exactly this class is as annotated, and only has to be dumped."""
        self._adapter: TypeAdapter[Any] | None = None
        self._dump: Callable[..., Any] | None = None
        self._in_one_step = True
        """Whether to try `pack_plain`. False after the first result that it could not write, until the worker restarts:
        a failed attempt costs more time than a successful one saves. So one unusual value, such as an integer of 65
        bits, turns this fast case off for all later results of the task."""
        self._resolved = False
        try:
            self._resolve()
        except NameError:
            pass  # as for parameters

    @property
    def annotation(self) -> Any:
        """Of the result, or of an item; `inspect.Parameter.empty`: there is none. Valid once the signature is
        resolved."""
        returns = self._signature.returns
        return item_annotation(returns) if self._streams else returns

    @property
    def adapter(self) -> TypeAdapter[Any] | None:
        """Of the result, or of an item; None: there is no annotation. Valid once it is resolved."""
        return self._adapter

    def resolve(self) -> None:
        """Raises InvalidSettings if the annotation names something that does not exist."""
        try:
            self._resolve()
        except NameError as error:
            raise InvalidSettings(
                f"{self._where}: the result's annotation cannot be resolved: {error}; define it at the top level of "
                "the module"
            ) from error

    def _resolve(self) -> None:
        """Resolve the return annotation. Without one, any wire value is accepted."""
        if self._resolved or not self._signature.resolved:
            return
        annotation = self.annotation
        if annotation not in (inspect.Parameter.empty, Any, object):
            self._exact = annotation if isinstance(annotation, type) and annotation in _EXACT else None
            self._exact = type(None) if annotation in (None, type(None)) else self._exact
            self._adapter = adapter_for(annotation, f"{self._where}: the result")
            self._dump = self._adapter.serializer.to_python
            if isinstance(annotation, type) and issubclass(annotation, BaseModel):
                checked_again = annotation.model_config.get("revalidate_instances", "never") != "never"
                self._model = None if checked_again else annotation
        self._resolved = True

    def write(self, value: Any) -> Any:
        """Convert, always to a copy.

        Raises:
            InvalidResult: names the type and place of the value that cannot be serialized, or how it differs from the
                annotation.
        """
        if self._adapter is not None and type(value) is not self._exact:
            value = self._as_annotated(value)
        kind = type(value)
        if kind in SCALARS or (kind is str and value.isascii()):
            return value
        return to_wire(value, self._where)

    def pack(self, place: tuple[int, int], value: Any) -> bytes:
        """Encode the frame of a result, which starts with `place`. Raises the errors of `write`, and of `codec.pack`
        for numbers and texts that cannot be packed."""
        if self._adapter is not None and type(value) is not self._exact:
            value = self._as_annotated(value)
        if type(value) not in ATOMS:
            if self._in_one_step:
                if (packed := pack_plain([*place, value])) is not None:
                    return packed
                self._in_one_step = False
            if not is_plain(value):
                value = to_wire(value, self._where)
        return pack((*place, value))

    def _as_annotated(self, value: Any) -> Any:
        assert self._adapter is not None
        assert self._dump is not None
        if type(value) is not self._model and inspect.isawaitable(value):
            close_awaitable(value)
            raise InvalidResult(f"{self._where} returned an awaitable, never awaited: declare it with 'async def'")
        try:
            if type(value) is self._model:
                return self._dump(value, warnings=False)
            return self._dump(self._adapter.validate_python(value), warnings=False)
        except ValidationError as error:
            item = error.errors(include_url=False, include_context=False)[0]
            place = ".".join(["result", *(str(part) for part in item["loc"])])
            text = f"{place} does not fit the annotation: {item['msg']}, returned {shown(item['input'])}"
        except PydanticSerializationError as error:
            text = f"the result cannot be serialized: {error}"
        raise InvalidResult(f"{self._where}: {text}", details={"type": type(value).__name__})
