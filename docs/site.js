// Says what a point of a figure is, beside it: under the pointer, after a tap, or with the keyboard.
(() => {
  const box = document.createElement("div");
  box.className = "tip-box";
  box.setAttribute("role", "status");
  box.hidden = true;
  document.body.append(box);
  const show = (event) => {
    const point = event.target.closest?.(".tip");
    box.hidden = !point;
    if (!point) return;
    box.textContent = point.getAttribute("aria-label");
    const place = point.getBoundingClientRect();
    box.style.left = `${Math.max(8, Math.min(place.left, innerWidth - box.offsetWidth - 8))}px`;
    const above = place.top - box.offsetHeight - 8;
    box.style.top = `${above > 60 ? above : place.bottom + 8}px`;
  };
  for (const kind of ["pointerover", "focusin", "click"]) document.addEventListener(kind, show);
  document.addEventListener("scroll", () => { box.hidden = true; }, { passive: true });
})();
