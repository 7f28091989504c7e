"""Every view of the dashboard by its address, and how to get there; a new page is a line here."""

from .showing import Shown

VIEWS = (
    "/jobs",
    "/jobs/{job}",
    "/jobs/{job}?view=table",
    "/jobs/{job}/charts",
    "/jobs/{job}/charts?view=table",
    "/jobs/{job}/knobs",
    "/jobs/{job}/ranks",
    "/jobs/{job}/logs",
    "/jobs/{job}/checkpoints",
    "/jobs/{job}/events",
    "/jobs/{job}/spec",
    "/jobs/{ended}",
    "/jobs/{ended}/logs",
    "/jobs/{ended}/ranks",
    "/experiments",
    "/experiments?pick={job},{ended}",
    "/experiments/compare?run={job}&run={ended}",
    "/submit",
    "/cluster",
    "/settings",
    "/nothing",
)
GO = """(to) => {
  history.pushState(null, "", to);
  window.dispatchEvent(new PopStateEvent("popstate"));
  window.scrollTo(0, 0);
}"""
ARRIVED = """() => {
  const main = document.querySelector("main");
  const isComing = main?.querySelector("[aria-busy=true], [class*=skeleton]");
  return main !== null && main.children.length > 0 && !isComing;
}"""


def visit(shown: Shown, address: str) -> None:
    """Go to a view without loading the page anew; come back when all of it is there."""
    shown.page.evaluate(GO, address)
    shown.page.wait_for_function(ARRIVED)
