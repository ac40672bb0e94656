"""`/ui/secrets`: names, grants and age of the person's own secrets; never a value (SEC-2)."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from cellwall.core.errors import VaultError
from cellwall.core.types import Permission
from cellwall.interfaces.http.bodies.base import body_of
from cellwall.interfaces.http.bodies.secrets import SecretBody, SecretRequest
from cellwall.interfaces.http.dashboard.browser import CurrentBrowser, CurrentForm
from cellwall.interfaces.http.dashboard.pages import PageRoute, render
from cellwall.interfaces.http.secret_routes import list_secrets, put_secret, remove_secret

routes = APIRouter(route_class=PageRoute)
_LIST = "/ui/secrets"


@routes.get(_LIST)
async def secrets_page(request: Request, browser: CurrentBrowser) -> Response:
    """What is known about the secrets, and a form that stores one."""
    has_vault, secrets = True, list[SecretBody]()
    try:
        secrets = (await list_secrets(browser.service, browser.caller)).secrets
    except VaultError as error:
        if error.code != "CW-VAULT-MISSING":
            raise
        has_vault = False
    return render(
        request,
        "secrets.html",
        browser=browser,
        secrets=secrets,
        has_vault=has_vault,
        may_use=browser.may(Permission.SECRETS_USE),
    )


@routes.post(_LIST)
async def store_secret(browser: CurrentBrowser, form: CurrentForm) -> Response:
    """Store a value with the one host to which it may be sent, through the function of the API."""
    wanted: dict[str, object] = {"value": form.text("value")}
    if host := form.text("host").strip():
        wanted["grants"] = [
            {"host": host, "name": form.text("header").strip().lower() or "authorization"}
        ]
    body = body_of(SecretRequest, wanted)
    await put_secret(browser.service, browser.caller, form.text("name").strip(), body)
    return RedirectResponse(_LIST, status_code=303)


@routes.post(_LIST + "/{name}/remove")
async def remove_page(browser: CurrentBrowser, name: str) -> Response:
    """Remove a secret with its grants; leases of it end at once."""
    await remove_secret(browser.service, browser.caller, name)
    return RedirectResponse(_LIST, status_code=303)
