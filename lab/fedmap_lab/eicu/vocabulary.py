"""The federated vocabulary of free terms (drug names, diagnosis codes): counted, pooled, frozen, applied.

A site counts in how many stays each term occurs and lets go only of terms that enough different patients
share; the centre adds the counts and freezes a sorted list; every site then encodes its own stays against
that list. The digest is the vocabulary's version.

A term is the name of its future column, prefix included (`drug_…`, `dx_…`). What the terms mean, and how
raw strings become terms, is left to the loader. Nothing here knows a stay's outcome.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from fedmap.errors import DataError

FORMAT = 1
LEAST_FLOOR = 5
"""No site may publish a term that fewer patients than this share, whatever a study asks for."""
_TERM = re.compile(r"[a-z]+_[A-Za-z0-9._]{1,240}")


@dataclass(frozen=True)
class TermCount:
    term: str
    stays: int


@dataclass(frozen=True)
class SiteTermCounts:
    """What one site lets go of: counts of stays for the terms that enough of its patients share."""

    site: str
    counts: tuple[TermCount, ...]  # sorted by term
    suppressed: int  # how many terms stay home


@dataclass(frozen=True)
class Vocabulary:
    """The frozen list of terms of a study, and the thresholds it was pooled with."""

    terms: tuple[str, ...]
    min_stays: int
    min_sites: int

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical form: the vocabulary's version."""
        canonical = json.dumps(
            [FORMAT, self.min_stays, self.min_sites, list(self.terms)], separators=(",", ":")
        )
        return hashlib.sha256(canonical.encode()).hexdigest()


@dataclass(frozen=True, eq=False)
class EncodedTerms:
    """Counts per stay in the vocabulary's order, and what the vocabulary had no place for."""

    frame: pd.DataFrame  # (stays, terms) int32, indexed by stay
    unknown_terms: int  # different terms outside the vocabulary
    unknown_occurrences: int


def count_terms(site: str, occurrences: pd.DataFrame, min_cell: int) -> SiteTermCounts:
    """Count stays per term at one site; terms of fewer than `min_cell` patients are suppressed.

    `occurrences` has one row per record, with columns stay, patient and term. The floor is on patients,
    because ten stays of one person are one person; what is published is the count of stays.
    """
    if min_cell < LEAST_FLOOR:
        raise DataError(
            site,
            (f"min_cell {min_cell} is below the least floor, {LEAST_FLOOR}",),
            hint=f"set min_cell to {LEAST_FLOOR} or more",
        )
    per_term = occurrences.groupby("term").agg(stays=("stay", "nunique"), patients=("patient", "nunique"))
    shared = per_term.loc[per_term["patients"] >= min_cell, "stays"].sort_index()
    return SiteTermCounts(
        site=site,
        counts=tuple(TermCount(str(term), int(stays)) for term, stays in shared.items()),
        suppressed=len(per_term) - len(shared),
    )


def pool_vocabulary(site_counts: Sequence[SiteTermCounts], min_stays: int, min_sites: int) -> Vocabulary:
    """Freeze the terms that reach `min_stays` stays in all and occur at `min_sites` sites or more."""
    _check_counts(site_counts)
    stays: Counter[str] = Counter()
    sites: Counter[str] = Counter()
    for counted in site_counts:
        for entry in counted.counts:
            stays[entry.term] += entry.stays
            sites[entry.term] += 1
    terms = sorted(term for term in stays if stays[term] >= min_stays and sites[term] >= min_sites)
    if not terms:
        raise DataError(
            "all",
            (f"no term reaches {min_stays} stays at {min_sites} of {len(site_counts)} sites",),
            hint="lower min_stays or min_sites, or federate larger sites (regions in place of hospitals)",
        )
    return Vocabulary(terms=tuple(terms), min_stays=min_stays, min_sites=min_sites)


def encode(occurrences: pd.DataFrame, stays: Sequence[int], vocabulary: Vocabulary) -> EncodedTerms:
    """Count each vocabulary term in each of the given stays; records of other stays are a fault.

    `occurrences` has one row per record, with columns stay and term.
    """
    rows = pd.Index(stays).get_indexer(pd.Index(occurrences["stay"]))
    if (rows < 0).any():
        raise ValueError("occurrences of a stay that is not to be encoded")
    columns = pd.Index(vocabulary.terms, dtype=object).get_indexer(pd.Index(occurrences["term"]))
    known = columns >= 0
    counts = np.zeros((len(stays), len(vocabulary.terms)), dtype=np.int32)
    np.add.at(counts, (rows[known], columns[known]), 1)
    return EncodedTerms(
        frame=pd.DataFrame(counts, index=pd.Index(stays), columns=list(vocabulary.terms)),
        unknown_terms=int(occurrences.loc[~known, "term"].nunique()),
        unknown_occurrences=int((~known).sum()),
    )


def to_json(vocabulary: Vocabulary) -> str:
    """The file of a released vocabulary."""
    document = {
        "format": FORMAT,
        "digest": vocabulary.digest,
        "min_stays": vocabulary.min_stays,
        "min_sites": vocabulary.min_sites,
        "terms": vocabulary.terms,
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _check_counts(site_counts: Sequence[SiteTermCounts]) -> None:
    """Counts come from outside: a site counted twice or an impossible entry must not shape the list."""
    seen: set[str] = set()
    for counted in site_counts:
        terms = [entry.term for entry in counted.counts]
        faults = (
            ("the site is counted twice", int(counted.site in seen)),
            ("terms occur twice", len(terms) - len(set(terms))),
            ("entries are no valid term", sum(_TERM.fullmatch(term) is None for term in terms)),
            (
                f"counts are below the floor of {LEAST_FLOOR}",
                sum(entry.stays < LEAST_FLOOR for entry in counted.counts),
            ),
        )
        problems = tuple(f"vocabulary counts: {fault} ({number})" for fault, number in faults if number)
        if problems:
            raise DataError(counted.site, problems, hint="count the terms again with count_terms")
        seen.add(counted.site)
