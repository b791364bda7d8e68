"""The page and what it asks of this machine.

``GET /`` and its files are anybody's here. All under ``/api/`` wants the token. Events of a piece of work come as lines
of JSON. Imports no torch: the worker's thread does, after the page is there.
"""

import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from typing import Any

import anyio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from experiments.benchmarks.iconworld.sentences import CONCEPTS
from experiments.report.figures import css
from experiments.serving.exploring.arms import Cases, settings_of
from experiments.serving.exploring.experiment import Experiment, read_experiment
from experiments.serving.pictures import Pictures, as_url, read_picture
from experiments.serving.server import DROPPED, LOOPBACK, BadRequest
from experiments.serving.web import Events, application, check_key, parsed_body, refusal
from experiments.serving.worker import Job, Worker
from interp.errors import UserError

SCRIPTS = ("elements", "picture")  # of the report, which the page loads before its own
OWN_SCRIPTS = ("state", "draw", "ask", "look", "change", "keep", "main")
STYLES = ("report.css", "browser.css")
POLICY = (
    "default-src 'none'; img-src data: blob:; style-src 'self' 'unsafe-inline'; script-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
WRONG_TOKEN = "the token is missing or wrong; open the address that the terminal shows"
ENDPOINTS = ("state", "picture", "show", "work")


@dataclass
class Server:
    """What the endpoints know. ``refused`` are the given arms that cannot answer here, and why."""

    worker: Worker
    cases: Cases
    pictures: Pictures
    arms: Mapping[str, Any]
    refused: Mapping[str, str]
    model: Any
    token: str
    body: int
    pixels: int
    studied: str = ""
    case: str | None = None
    tokens: int = 16

    def app(self) -> Starlette:
        """Return the ASGI application."""
        routes = [
            Route("/", self._page, methods=["GET"]),
            Route("/explore.js", self._script, methods=["GET"]),
            Route("/explore.css", self._style, methods=["GET"]),
            *(Route(f"/api/{name}", self._guarded(getattr(self, name)), methods=["POST"]) for name in ENDPOINTS),
        ]
        return application(routes, _refused, most=self.body, hosts=LOOPBACK)

    def state(self, _: Any) -> Any:
        """Return what the page has to know before it asks: the model, as far as it is loaded, arms, things to draw."""
        vlm = self.worker.vlm
        facts: dict[str, Any] = {
            "model": {"name": self.model.name, "ready": vlm is not None, "failed": self.worker.failed},
            "tokens": self.tokens,
            "things": list(CONCEPTS),
            "arms": {name: settings_of(method) for name, method in self.arms.items()},
            "refused_arms": self.refused,
            "studied": self.studied,
        }
        if vlm is not None:
            facts["model"] |= {
                "layers": len(vlm.module_map.blocks),
                "dtype": str(vlm.dtype).removeprefix("torch."),
                "refusals": self._refusals,
            }
        return facts

    def picture(self, body: Any) -> Any:
        """Keep an uploaded picture, a data URL; return its name."""
        if not isinstance(body, dict) or not isinstance(body.get("url"), str):
            raise BadRequest('a picture is sent as {"url": "data:image/png;base64,…"}')
        return {"name": self.pictures.keep(read_picture(body["url"], self.pixels))}

    def show(self, body: Any) -> Any:
        """Return a named picture as the page shows it, with its case. ``first`` is the picture to open on."""
        name = body.get("name") if isinstance(body, dict) else None
        if not isinstance(name, str):
            raise BadRequest("name: the picture's name is missing")
        if name == "first":
            case = self.cases.first(self.case)
            name = f"case:{case}" if case else "drawn:cockroach:1"
        sample = self.cases.sample(name.removeprefix("case:")) if name.startswith("case:") else None
        about = sample and {"id": sample.id, "text": sample.text, "gold": sample.gold, "subset": sample.subset}
        image = self.pictures.open(name[:300])
        return {"name": name, "url": image and as_url(image), "case": about}

    def work(self, body: Any) -> Response:
        """Put an experiment before the model. Its events come line by line. The last has ``done`` or ``error``."""
        if not isinstance(body, dict) or set(body) - {"tab", "experiment"}:
            raise BadRequest("a request has a tab and an experiment")
        experiment, events = read_experiment(body.get("experiment")), Events()
        job = Job(
            lambda vlm, _: [self._answer(experiment, events.tell, vlm)],
            events.tell,
            tab=str(body.get("tab") or uuid.uuid4())[:64],
        )
        self.worker.put(job)
        return StreamingResponse(self._lines(job, events), media_type="application/x-ndjson", headers=HEADERS)

    async def _lines(self, job: Job, events: Events) -> AsyncIterator[str]:
        """Yield events as lines, until the last. A client that leaves ends its job."""
        try:
            ended = False
            while not ended:
                event = await events.hear()
                error = event.get("error")
                if isinstance(error, UserError):
                    refused = refusal(error)
                    event = {"error": str(refused), **({"stopped": True} if refused.status_code == DROPPED else {})}
                ended = "done" in event or error is not None
                yield json.dumps(_finite(event)) + "\n"
        finally:
            self.worker.drop(job)

    def _answer(self, experiment: Experiment, tell: Callable[[dict[str, Any]], object], vlm: Any) -> dict[str, Any]:
        tell({"begun": True})
        material = self._answers.Material(self.pictures, self.cases, self.arms)
        result: dict[str, Any] = self._answers.answer(vlm, experiment, material, tell)
        return result

    @cached_property
    def _answers(self) -> Any:
        """Return the module that imports torch: for the worker's thread, or when the model is loaded."""
        from experiments.serving.exploring import answers

        return answers

    @cached_property
    def _refusals(self) -> dict[str, str]:
        refusals: dict[str, str] = self._answers.refusals(self.worker.vlm)
        return refusals

    async def _page(self, _: Request) -> Response:
        return HTMLResponse(_own("index.html"), headers=HEADERS | {"Content-Security-Policy": POLICY})

    async def _script(self, _: Request) -> Response:
        source = "".join(
            [*(_template(f"js/{name}.js") for name in SCRIPTS), *(_own(f"{name}.js") for name in OWN_SCRIPTS)]
        )
        return Response(f"'use strict';\n(() => {{\n{source}}})();\n", media_type="text/javascript", headers=HEADERS)

    async def _style(self, _: Request) -> Response:
        style = "".join([css(), *map(_template, STYLES), _own("explore.css")])
        return Response(style, media_type="text/css", headers=HEADERS)

    def _guarded(self, endpoint: Callable[[Any], Any]) -> Callable[[Request], Awaitable[Response]]:
        """Return the endpoint behind token, origin and JSON. All but ``work`` run in a thread."""

        async def guarded(request: Request) -> Response:
            origin, host = request.headers.get("origin"), request.headers.get("host", "")
            if origin is not None and origin.partition("://")[2] != host:
                raise BadRequest("requests come from this server's own page alone", status=403)
            check_key(request, self.token, WRONG_TOKEN)
            body = await parsed_body(request, self.body, _parsed)
            if endpoint == self.work:
                return self.work(body)
            return JSONResponse(await anyio.to_thread.run_sync(endpoint, body), headers=HEADERS)

        return guarded


def _finite(value: Any) -> Any:
    """Replace NaN by null, because JSON has none."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and value != value else value


def _parsed(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        raise BadRequest("the body is no JSON") from None


def _refused(told: BadRequest) -> Response:
    return JSONResponse({"error": str(told)}, status_code=told.status_code, headers=HEADERS)


def _own(name: str) -> str:
    return (files("experiments.serving.exploring") / "page" / name).read_text(encoding="utf-8")


def _template(name: str) -> str:
    return (files("experiments.report") / "templates" / name).read_text(encoding="utf-8")
