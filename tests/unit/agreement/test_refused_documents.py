"""A corpus of documents that are no agreements, each with the words that it is refused with."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tidegate.agreements.document import AgreementInvalid, parse_agreement
from tidegate.agreements.openslo import parse_openslo
from tidegate.agreements.tapas import parse_tapas

CORPUS = sorted((Path(__file__).parent / "refused").iterdir())
WORDS = re.compile(r"^(?:# |<!-- )refused: (.*?)(?: -->)?$", re.MULTILINE)

PARSERS: dict[str, Callable[[str, str], object]] = {
    ".toml": parse_agreement,
    ".xml": lambda text, source: parse_tapas(text.encode(), source),
    ".yaml": parse_openslo,
}


@pytest.mark.parametrize("file", CORPUS, ids=lambda file: file.name)
def test_a_bad_document_is_refused_with_its_words(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    expected = WORDS.findall(text)
    assert expected, "a document of the corpus says what it is refused with"

    with pytest.raises(AgreementInvalid) as caught:
        PARSERS[file.suffix](text, file.name)

    said = str(caught.value)
    for words in expected:
        assert words in said
    assert all(line.startswith(file.name) for line in caught.value.complaints)
