"""The page and what it asks of this machine.

``GET /`` and its files are anybody's here, all under ``/api/`` wants the token. Events of a piece of work come as
lines of JSON. Imports no torch: the desk's thread does, after the page is there.
"""

import json
import secrets
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from importlib.resources import files
from typing import Any

import anyio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from experiments.benchmarks.iconworld.concepts import CONCEPTS
from experiments.report import colours
from experiments.serving.exploring.arms import Offered, chosen, settings_of
from experiments.serving.exploring.cases import Cases
from experiments.serving.exploring.code import code, command
from experiments.serving.exploring.desk import Desk, Work
from experiments.serving.exploring.experiment import Experiment, read_experiment
from experiments.serving.exploring.pictures import Pictures, as_url
from experiments.serving.pictures import read_picture
from experiments.serving.requests import BadRequest
from experiments.serving.socket_server import LOOPBACK
from experiments.serving.web import Stream, Talk, application, holds_key, json_body
from interp.errors import UserError

SCRIPTS = ("elements", "picture")  # of the report, which the page loads before its own
OWN_SCRIPTS = ("state", "draw", "ask", "look", "change", "keep", "main")
STYLES = ("report.css", "browser.css")
POLICY = (
    "default-src 'none'; img-src data: blob:; style-src 'self' 'unsafe-inline'; script-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors {}"
)
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


@dataclass
class Server:
    """What the endpoints know. ``arms`` are offered, ``refused`` are those of the run that cannot answer here, and why.

    ``frames`` are the origins that may show the page inside theirs (a notebook's).
    """

    desk: Desk
    cases: Cases
    pictures: Pictures
    arms: Mapping[str, Offered]
    refused: Mapping[str, str]
    model: Any
    token: str
    body: int
    pixels: int
    case: str | None = None
    tokens: int = 16
    frames: str = "'none'"
    _reports: dict[str, str] = field(default_factory=dict, init=False)

    def app(self) -> Starlette:
        """The ASGI application."""
        routes = [
            Route("/", self._page, methods=["GET"]),
            Route("/explore.js", self._script, methods=["GET"]),
            Route("/explore.css", self._style, methods=["GET"]),
            Route("/report/{ticket}", self._report, methods=["GET"]),
            *(
                Route(f"/api/{name}", self._guarded(endpoint), methods=["POST"])
                for name, endpoint in (
                    ("state", self.state),
                    ("picture", self.picture),
                    ("show", self.show),
                    ("run", self.run),
                    ("report", self.report),
                    ("code", self.code),
                    ("work", self.work),
                )
            ),
        ]
        return application(routes, _refused, most=self.body, hosts=LOOPBACK)

    async def state(self, _: Any) -> Any:
        """What the page has to know before it asks: the model, as far as it is loaded, arms, things to draw."""
        vlm, desk = self.desk.vlm, self.desk
        facts: dict[str, Any] = {
            "model": {"name": self.model_name, "ready": vlm is not None, "failed": desk.failed},
            "tokens": self.tokens,
            "things": list(CONCEPTS),
            "arms": {name: settings_of(one.method) for name, one in self.arms.items()},
            "refused_arms": self.refused,
            "run": None if self.cases.saved is None else str(self.cases.folder),
            "studied": next((name for name in self.cases.nodes if name in self.arms and name != "baseline"), ""),
        }
        if vlm is not None:
            facts["model"] |= {
                "layers": len(vlm.layout.blocks),
                "heads": self._heads(vlm),
                "dtype": str(vlm.dtype).removeprefix("torch."),
                "refusals": await anyio.to_thread.run_sync(lambda: self._refusals),
                "not_live": await anyio.to_thread.run_sync(self.cases.not_live, vlm),
            }
        return facts

    @property
    def model_name(self) -> str:
        """What the model is called."""
        return str(self.desk.vlm.name if self.desk.vlm is not None else getattr(self.model, "name", "model"))

    async def picture(self, body: Any) -> Any:
        """Takes in a picture of one's own, as a data URL; its name."""
        if not isinstance(body, dict) or not isinstance(body.get("url"), str):
            raise BadRequest('a picture is sent as {"url": "data:image/png;base64,…"}')
        image = await anyio.to_thread.run_sync(read_picture, body["url"], self.pixels)
        return {"name": await anyio.to_thread.run_sync(self.pictures.keep, image)}

    async def show(self, body: Any) -> Any:
        """A named picture as the page shows it, with what is known of its case; ``first`` is the one to open on."""
        name = body.get("name") if isinstance(body, dict) else None
        if not isinstance(name, str):
            raise BadRequest("name: the picture's name is missing")
        return await anyio.to_thread.run_sync(self._shown, name[:300])

    def _shown(self, name: str) -> dict[str, Any]:
        if name == "first":
            case = self.cases.first(self.case)
            name = f"case:{case}" if case else "drawn:cockroach:1"
        about: dict[str, Any] = {}
        if name.startswith("case:"):
            try:
                about = self.cases.about(name.removeprefix("case:"))
            except UserError as error:
                saved = None if self.cases.saved is None else self.cases.saved.thumbnail(name.removeprefix("case:"))
                if saved is None:
                    raise
                return {"name": name, "url": saved, "read_only": str(error)}
        image = self.pictures.open(name)
        return {"name": name, "url": None if image is None else as_url(image), "case": about or None}

    async def run(self, _: Any) -> Any:
        """The cases of the run, as the report's page has them."""
        return await anyio.to_thread.run_sync(self.cases.listed)

    async def report(self, _: Any) -> Any:
        """Where the run's report is, once: a browser that goes there can send no token. It is made anew, from the run's
        data: the HTML in its folder may be a stranger's."""
        if self.cases.folder is None:
            raise BadRequest("no run was given; start with run=<dir>, the folder of a finished run")
        from experiments.report.build import render

        ticket = secrets.token_urlsafe(24)
        self._reports = {ticket: await anyio.to_thread.run_sync(partial(render, self.cases.folder, explore="../"))}
        return {"address": f"report/{ticket}"}

    async def _report(self, request: Request) -> Response:
        html = self._reports.pop(request.path_params["ticket"], None)
        if html is None:
            raise BadRequest("this address was good once; open the report from the page again", status=404)
        return HTMLResponse(html.encode("utf-8", errors="replace"), headers=HEADERS)

    async def code(self, body: Any) -> Any:
        """An experiment as Python, and as a command."""
        experiment = read_experiment(body)
        return await anyio.to_thread.run_sync(self._code, experiment)

    def _code(self, experiment: Experiment) -> dict[str, str]:
        text = self._tools.prompt_for(self.material, experiment).text
        for arm in experiment.arms:
            chosen(self.arms, arm)  # refuses what is not there
        return {
            "python": code(experiment, self.arms, self.model, self.cases.run.benchmark, text),
            "command": command(experiment, self.arms),
        }

    async def work(self, body: Any) -> Response:
        """Puts an experiment before the model; its events come line by line, and the last has ``done`` or ``error``."""
        if not isinstance(body, dict) or set(body) - {"tab", "experiment"}:
            raise BadRequest("a request has a tab and an experiment")
        experiment, events = read_experiment(body.get("experiment")), Talk[dict[str, Any]]()
        work = Work(
            str(body.get("tab") or uuid.uuid4())[:64], partial(self._answer, experiment, events.tell), events.tell
        )
        self.desk.put(work)
        drop = partial(self.desk.drop, work)
        return Stream(_lines(events), drop, media_type="application/x-ndjson", headers=HEADERS)

    def _answer(self, experiment: Experiment, tell: Callable[[dict[str, Any]], object], vlm: Any) -> dict[str, Any]:
        tell({"begun": True})
        result: dict[str, Any] = self._tools.answer(vlm, experiment, self.material, tell)
        return result

    @cached_property
    def _tools(self) -> Any:
        """``answers``, which imports torch: asked for where the model is, or is being loaded."""
        from experiments.serving.exploring import answers

        return answers

    @cached_property
    def material(self) -> Any:
        """What experiments name."""
        return self._tools.Material(self.pictures, self.cases, self.arms)

    @cached_property
    def _refusals(self) -> dict[str, str]:
        refusals: dict[str, str] = self._tools.refusals(self.desk.vlm)
        return refusals

    @staticmethod
    def _heads(vlm: Any) -> list[int]:
        return [vlm.layout.heads(layer) if vlm.layout.blocks[layer].attention else 0 for layer in vlm.layout.blocks]

    async def _page(self, _: Request) -> Response:
        policy = {"Content-Security-Policy": POLICY.format(self.frames)}
        return HTMLResponse(_own("index.html"), headers=HEADERS | policy)

    async def _script(self, _: Request) -> Response:
        source = "".join(
            [*(_report(f"js/{name}.js") for name in SCRIPTS), *(_own(f"{name}.js") for name in OWN_SCRIPTS)]
        )
        return Response(f"'use strict';\n(() => {{\n{source}}})();\n", media_type="text/javascript", headers=HEADERS)

    async def _style(self, _: Request) -> Response:
        style = "".join([colours.css(), *map(_report, STYLES), _own("explore.css")])
        return Response(style, media_type="text/css", headers=HEADERS)

    def _guarded(self, endpoint: Callable[[Any], Awaitable[Any]]) -> Callable[[Request], Awaitable[Response]]:
        """The endpoint behind token, origin and JSON."""

        async def guarded(request: Request) -> Response:
            self._check(request)
            reply = await endpoint(_parsed(await json_body(request, self.body)))
            return reply if isinstance(reply, Response) else JSONResponse(reply, headers=HEADERS)

        return guarded

    def _check(self, request: Request) -> None:
        origin, host = request.headers.get("origin"), request.headers.get("host", "")
        if origin is not None and origin.partition("://")[2] != host:
            raise BadRequest("requests come from this server's own page alone", status=403)
        if not holds_key(request, self.token):
            raise BadRequest("the token is missing or wrong; open the address that the terminal shows", status=401)


async def _lines(events: Talk[dict[str, Any]]) -> AsyncIterator[str]:
    """Events as lines, until the last."""
    while True:
        event = await events.hear()
        yield json.dumps(_finite(event)) + "\n"
        if "arm" not in event and ("done" in event or "error" in event):
            return


def _finite(value: Any) -> Any:
    """JSON has no NaN: what is not known is null."""
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and value != value else value


def _parsed(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        raise BadRequest("the body is no JSON") from None


def _refused(told: BadRequest) -> Response:
    return JSONResponse({"error": told.detail}, status_code=told.status_code, headers=HEADERS)


def _own(name: str) -> str:
    return (files("experiments.serving.exploring") / "page" / name).read_text(encoding="utf-8")


def _report(name: str) -> str:
    return (files("experiments.report") / "templates" / name).read_text(encoding="utf-8")
