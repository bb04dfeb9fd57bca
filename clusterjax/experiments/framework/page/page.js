/* The page works without this script: all figures are shown, and pictures and players are links. The script adds a filter
   by verdict, players and large pictures on the page, and a button that copies a command. */
(function () {
  "use strict";
  const all = (selector, within = document) => Array.from(within.querySelectorAll(selector));
  const filter = document.getElementById("filter"), shown = document.getElementById("shown");

  function apply() {
    const wanted = new FormData(filter).get("verdict") || "";
    const fits = (element) => !wanted || element.dataset.verdicts.split("|").includes(wanted);
    for (const element of all("[data-verdicts]")) element.hidden = !fits(element);
    // Headings without visible rows or cards are hidden.
    for (const group of all("#all tbody")) group.hidden = !group.querySelector("tr[data-verdicts]:not([hidden])");
    for (const paper of all(".paper")) paper.hidden = !paper.querySelector(".card:not([hidden])");
    const cards = all(".card"), left = cards.filter((card) => !card.hidden).length;
    shown.textContent = wanted ? `${left} of ${cards.length} figures have a claim of this verdict.` : "";
  }
  filter.hidden = false;
  filter.addEventListener("change", apply);
  filter.addEventListener("submit", (event) => event.preventDefault());
  // A browser may restore the previous choice when it reloads the page.
  apply();

  // A link to a figure that the filter hides resets the filter.
  addEventListener("hashchange", () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (target === null || !target.closest("[hidden]")) return;
    filter.reset();
    apply();
    target.scrollIntoView();
  });

  // Players are loaded when they are within one screen of the visible part.
  const near = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting) continue;
      near.unobserve(target);
      target.src = target.dataset.src;
    }
  }, { rootMargin: "100% 0px" });
  for (const player of all(".player")) {
    player.hidden = false;
    near.observe(player.querySelector("iframe"));
  }

  const large = document.getElementById("large"), whole = document.getElementById("whole");
  const picture = whole.querySelector("img");
  for (const link of all("a.still")) {
    link.addEventListener("click", (event) => {
      // With a modifier key the browser opens the link itself.
      if (event.ctrlKey || event.metaKey || event.shiftKey || event.button !== 0) return;
      event.preventDefault();
      whole.href = picture.src = link.href;
      picture.alt = link.querySelector("img").alt;
      large.showModal();
    });
  }
  large.addEventListener("click", (event) => {
    if (event.target === large) large.close();
  });

  for (const command of all(".command")) {
    const button = document.createElement("button"), code = command.querySelector("code");
    button.type = "button";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(code.textContent);
        button.textContent = "Copied";
      } catch {
        // A page that may not write to the clipboard selects the line, so that the reader can copy it.
        getSelection().selectAllChildren(code);
        button.textContent = "Selected";
      }
      setTimeout(() => (button.textContent = "Copy"), 2000);
    });
    command.append(button);
  }
})();
