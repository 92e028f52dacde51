"""spaCy: the component `albertkit` sets entities and categories.

In: the folders of a model fine-tuned for `tag`, of one for `classify`, or of both. Out: `doc.ents` and `doc.cats`.
Entities of earlier components stay; new ones that overlap them are dropped.
spaCy finds it by the entry point of the installed package. Needs the extra `spacy`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from albertkit.albert import Albert
from albertkit.errors import AlbertkitError, need
from albertkit.runtime.predict import check_task

try:
    from spacy.language import Language
    from spacy.tokens import Doc, Span
    from spacy.util import filter_spans, minibatch
except ImportError:
    need("spacy", "spacy", "albertkit.adapters.spacy")
    raise

DEFAULTS = {"tag": None, "classify": None, "bits": None}


class AlbertComponent:
    """Entities and categories of documents, predicted in batches."""

    def __init__(self, tagger: Albert | None, classifier: Albert | None) -> None:
        if tagger is None and classifier is None:
            raise AlbertkitError(
                'the component has no model. Pass config={"tag": FOLDER}, {"classify": FOLDER} or both.'
            )
        for model, task in ((tagger, "tag"), (classifier, "classify")):
            if model is not None:
                check_task(model, task)
        if classifier is not None and classifier.task.kind == "regression":
            raise AlbertkitError("this model predicts a value, and doc.cats has classes. Pass a model with classes.")
        self.tagger, self.classifier = tagger, classifier

    def __call__(self, doc: Doc) -> Doc:
        return next(self.pipe([doc]))

    def pipe(self, stream: Iterable[Doc], batch_size: int = 128) -> Iterator[Doc]:
        """The documents in order, each with its entities and categories."""
        for docs in minibatch(stream, batch_size):
            texts = [doc.text for doc in docs]
            if self.tagger is not None:
                for doc, tagged in zip(docs, self.tagger.tag(texts), strict=True):
                    spans = [to_span(doc, entity.start, entity.end, entity.label) for entity in tagged.spans]
                    entity_tokens = {token.i for entity in doc.ents for token in entity}
                    new = filter_spans(span for span in spans if entity_tokens.isdisjoint(range(span.start, span.end)))
                    doc.ents = [*doc.ents, *new]
            if self.classifier is not None:
                for doc, label in zip(docs, self.classifier.classify(texts), strict=True):
                    doc.cats.update(label.probabilities or {})
            yield from docs


def to_span(doc: Doc, start: int, end: int, label: str) -> Span:
    """An entity as whole tokens of spaCy."""
    return doc.char_span(start, end, label, alignment_mode="expand")


@Language.factory("albertkit", default_config=DEFAULTS, assigns=["doc.ents", "doc.cats"])
def make_component(
    nlp: Language, name: str, tag: str | None, classify: str | None, bits: int | None
) -> AlbertComponent:
    """The component of a pipeline. tag, classify: model folders. bits: 8 or 4 quantizes float models on opening."""
    tagger, classifier = (None if folder is None else Albert(folder, bits=bits) for folder in (tag, classify))
    return AlbertComponent(tagger, classifier)
