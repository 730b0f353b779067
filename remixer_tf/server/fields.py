"""Fields of JSON requests: each checks its value, and describes it for OpenAPI."""

import dataclasses
import json
import math
from typing import Any

from remixer_tf.errors import UserError, nearest
from remixer_tf.server.limits import Refusal, invalid
from remixer_tf.server.signatures import text_bytes

NUMBERS = 2**53  # JSON's integers are exact up to it


@dataclasses.dataclass(frozen=True)
class Field:
    """A field. A subclass says which values it takes.

    Attributes:
        help: str, one line.
        needed: bool, whether a request must have it.
    """

    help: str = ""
    needed: bool = False

    def read(self, name, value, limits):
        """Returns the value, checked, or raises a `Refusal`."""
        raise NotImplementedError

    def schema(self, limits):
        """Returns the field's JSON schema, without its description."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Number(Field):
    """A finite number from `low` to `high`; `integer` takes no others."""

    low: Any = 0
    high: Any = 1e30
    integer: bool = False

    def read(self, name, value, limits):
        kinds = int if self.integer else (int, float)
        is_number = isinstance(value, kinds) and not isinstance(value, bool)
        if self.integer and isinstance(value, float) and value.is_integer():
            value, is_number = int(value), True  # JSON does not tell 1.0 from 1.
        high = self._high(limits)
        if not is_number or not self.low <= value <= high or not _is_finite(value):
            kind = "an integer" if self.integer else "a number"
            raise invalid(
                f"{name} must be {kind} from {self.low} to {high}. Received: "
                f"{shown(value)}"
            )
        return value

    def _high(self, limits):
        return getattr(limits, self.high) if isinstance(self.high, str) else self.high

    def schema(self, limits):
        kind = "integer" if self.integer else "number"
        return {"type": kind, "minimum": self.low, "maximum": self._high(limits)}


def _is_finite(value):
    return isinstance(value, int) or math.isfinite(value)


@dataclasses.dataclass(frozen=True)
class Flag(Field):
    """true or false."""

    def read(self, name, value, limits):
        if not isinstance(value, bool):
            raise invalid(f"{name} must be true or false. Received: {shown(value)}")
        return value

    def schema(self, limits):
        return {"type": "boolean"}


@dataclasses.dataclass(frozen=True)
class Choice(Field):
    """One of some texts."""

    choices: tuple = ()

    def read(self, name, value, limits):
        if not isinstance(value, str) or value not in self.choices:
            raise invalid(
                f"{name} must be {' or '.join(self.choices)}. Received: {shown(value)}"
            )
        return value

    def schema(self, limits):
        return {"type": "string", "enum": [*self.choices]}


@dataclasses.dataclass(frozen=True)
class Only(Field):
    """A field of another server's, which has one value here."""

    values: tuple = ()

    def read(self, name, value, limits):
        if not any(type(value) is type(x) and value == x for x in self.values):
            expected = " or ".join(map(json.dumps, self.values))
            raise invalid(
                f"{name} is not computed here: leave it out, or give {expected}."
            )
        return value

    def schema(self, limits):
        return {"enum": [*self.values]}


@dataclasses.dataclass(frozen=True)
class Anything(Field):
    """A field that is ignored, such as a name of the client's."""

    def read(self, name, value, limits):
        return value

    def schema(self, limits):
        return {}


@dataclasses.dataclass(frozen=True)
class Name(Field):
    """A short text."""

    def read(self, name, value, limits):
        if not isinstance(value, str) or len(value) > 200:
            raise invalid(f"{name} must be a short text. Received: {shown(value)}")
        return value

    def schema(self, limits):
        return {"type": "string", "maxLength": 200}


@dataclasses.dataclass(frozen=True)
class Texts(Field):
    """A text, or a list of texts: (bytes, ..) and whether it was one.

    `most` names the limit of their number. `one` takes no list. `image` also takes a
    file of any length as `{"b64": ..}`.
    """

    most: str = "max_rows"
    one: bool = False
    least: int = 1
    image: bool = False

    def read(self, name, value, limits):
        if not isinstance(value, list):
            return [text_bytes(name, value, limits, self.image)], True
        most = getattr(limits, self.most)
        if self.one:
            raise invalid(f"{name} must be one text.")
        if not self.least <= len(value) <= most:
            raise invalid(
                f"{name} has {len(value)} texts. Expected: {self.least} to {most}."
            )
        texts = [
            text_bytes(f"{name}[{i}]", x, limits, self.image)
            for i, x in enumerate(value)
        ]
        return texts, False

    def schema(self, limits):
        text = {
            "oneOf": [
                {"type": "string", "maxLength": limits.max_characters},
                {
                    "type": "object",
                    "properties": {"b64": {"type": "string", "format": "byte"}},
                    "required": ["b64"],
                    "additionalProperties": False,
                },
            ]
        }
        if self.one:
            return text
        several = {
            "type": "array",
            "items": text,
            "minItems": self.least,
            "maxItems": getattr(limits, self.most),
        }
        return {"oneOf": [*text["oneOf"], several]}


def read_fields(fields, body, limits):
    """Returns the fields that a request gives, checked; null is left out.

    Args:
        fields: dictionary of `Field`s.
        body: what the request's JSON holds.
        limits: the `Limits`.

    Raises a `Refusal` for a wrong or unknown field, or one that is missing.
    """
    if not isinstance(body, dict):
        raise invalid("The request must be a JSON object.")
    for name in body:
        if name not in fields:
            raise invalid(
                f"There is no field {name!r:.80}.{nearest(name, fields)} There are: "
                f"{', '.join(fields)}."
            )
    found = {}
    for name, field in fields.items():
        if body.get(name) is not None:
            found[name] = field.read(name, body[name], limits)
        elif field.needed:
            raise invalid(f"The field {name!r} is missing.")
    return found


def object_schema(fields, limits):
    """Returns the JSON schema of a request that has fields."""
    properties = {}
    for name, field in fields.items():
        schema = field.schema(limits)
        if schema and not field.needed:
            schema = {"anyOf": [schema, {"type": "null"}]}
        properties[name] = schema | ({"description": field.help} if field.help else {})
    return {
        "type": "object",
        "properties": properties,
        "required": [name for name, field in fields.items() if field.needed],
        "additionalProperties": False,
    }


def shown(value):
    """Returns a value of JSON for a message, shortened."""
    return f"{value!r:.80}"


def parse(text):
    """Returns what JSON holds, bytes; raises a `Refusal` if it is none."""
    try:
        found = json.loads(text.decode(), parse_constant=_no_constant)
        check_depth(found)
        return found
    except UnicodeDecodeError:
        raise Refusal(400, "The request is not UTF-8.") from None
    except RecursionError:
        raise Refusal(400, "The request is nested too deeply.") from None
    except ValueError as error:
        reason = str(error).partition(":")[0][:100]
        raise Refusal(400, f"The request is no JSON: {reason}.") from None


def check_depth(value, most=16):
    """Raises a RecursionError for lists and objects in more than `most` others."""
    inside = [[value]]
    for _ in range(most + 1):
        inside = [
            x
            for y in inside
            for x in (y.values() if isinstance(y, dict) else y)
            if isinstance(x, (dict, list))
        ]
        if not inside:
            return
    raise RecursionError


def _no_constant(name):
    raise UserError(f"{name} is no number of JSON")
