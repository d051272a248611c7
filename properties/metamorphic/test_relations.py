"""Every relation holds for a candidate, and kills its mutant."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.ranks.pool import RankPool
from properties.metamorphic.content import CONTENT
from properties.metamorphic.layout import LAYOUT
from properties.metamorphic.relation import Relation
from properties.metamorphic.trial import check, check_it_kills, expensive_examples

RELATIONS = (*LAYOUT, *CONTENT)


@pytest.mark.slow(but=4)
@pytest.mark.parametrize("relation", RELATIONS, ids=str)
@expensive_examples
@given(data=st.data())
def test_a_candidate_agrees_with_itself(
    harness_pool: RankPool,
    subject: str,
    relation: Relation,
    refused: Counter[str],
    data: st.DataObject,
) -> None:
    check(relation, harness_pool, subject, data.draw(relation.drawn), refused)


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("relation", RELATIONS, ids=lambda r: f"{r}-kills-{r.kills}")
def test_a_relation_kills_its_mutant(harness_pool: RankPool, relation: Relation) -> None:
    check_it_kills(relation, harness_pool)
