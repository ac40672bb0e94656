"""Words that instructions to a model are made of. They decide where it is worth to look again,
never what is found."""

from __future__ import annotations

STEMS = (
    "ignore",
    "disregard",
    "instruction",
    "previous",
    "system prompt",
    "override",
    "forget everything",
    "forget all",
    "reveal",
    "password",
    "passwd",
    "credential",
    "secret",
    "api key",
    "api_key",
    "jailbreak",
    "developer mode",
    "you are now",
    "pretend",
    "bypass",
    "unrestricted",
    "restriction",
    "guidelines",
    "confidential",
    "assistant",
    "execute",
    "transfer",
    "curl http",
    "https://",
    "send the",
    "send all",
    "delete all",
    "print the",
    "prompt",
    "ignoriere",
    "anweisung",
    "vergiss",
    "instruccion",
    "instrucoes",
    "ignora",
    "oublie",
    "precedente",
)
"""In lower case and ASCII; none is part of ordinary words when turned by 13 letters or around."""

_COMMON = """
a about above access account act action after all also always and answer any api are as ask
assistant at bank base be before begin bypass can change code command confidential content copy
credential credentials data database delete developer disregard do document email end every
everything exact exec execute file files follow following for forget from full get give guideline
guidelines hack has have hello hidden how i if ignore important in inject instead instruction
instructions is it jailbreak just keep key keys know list login mail me message mode model must my
never new no not now obey of on only open or other out output override paste pay paypal please
policy previous print prior private prompt prompts provide read remove repeat reply request reset
restriction restrictions reveal role root rule rules run safe safety say secret secrets send share
show stop system task tell text than that the their them then there these they this those to token
tokens tool trust unrestricted update upload url use user using via was we what when where which
who why will with without word words work write you your
"""


def common() -> frozenset[str]:
    """Words that are worth a look when they turn out to be written in another script."""
    return frozenset(_COMMON.split())
