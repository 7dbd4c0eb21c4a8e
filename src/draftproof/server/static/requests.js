// The cards of requests: what each is doing, and its tokens by where they came from.

const SPEED_S = 3; // Speeds are means over so long.
const MOST_TOKENS = 1500; // Tokens shown of a sample, the latest.
const MOST_CARDS = 64;
const MOST_FRESH = 1000;
const MOST_OVER = 6; // Requests shown after they are over.
const NAMES = { a: "accepted", c: "correction", b: "bonus", p: "plain" };

class Card {
  constructor(id, complete) {
    this.complete = complete; // Watched from its first token.
    this.over = false;
    this.count = this.drafted = this.accepted = 0;
    this.times = []; // [seconds, tokens so far]
    this.samples = new Map();
    this.element = document.createElement("article");
    this.element.dataset.request = id;
    const header = this.element.appendChild(document.createElement("header"));
    header.appendChild(document.createElement("h3")).textContent = `Request ${id}`;
    this.facts = header.appendChild(document.createElement("div"));
    this.facts.className = "facts";
  }

  add(turn, at) {
    this.drafter = turn.drafter;
    this.plan = turn.plan;
    this.drafted += turn.drafted;
    this.count += turn.origins.length;
    this.accepted += turn.origins.filter((origin) => origin === "a").length;
    this.times.push([at, this.count]);
    while (this.times.length > 2 && this.times[1][0] < at - SPEED_S) this.times.shift();
    const place = this.#place(turn.sample);
    const tokens = document.createDocumentFragment();
    turn.origins.forEach((origin, i) => tokens.append(token(origin, turn.texts?.[i])));
    const atEnd = place.scrollHeight - place.scrollTop - place.clientHeight < 40;
    place.append(tokens);
    while (place.childElementCount > MOST_TOKENS) place.firstElementChild.remove();
    if (atEnd) place.scrollTop = place.scrollHeight;
  }

  gap() {
    this.complete = false;
    for (const place of this.samples.values()) {
      const mark = place.appendChild(document.createElement("span"));
      mark.className = "gap";
      mark.textContent = " … ";
    }
  }

  describe(state) {
    const [depth, width] = this.plan ?? [];
    const facts = [
      state,
      this.drafter && `drafter ${this.drafter}`,
      depth !== undefined && `plan ${depth ? `${depth} × ${width}` : "plain"}`,
      `${this.complete ? "" : "≥ "}${this.count} tokens`,
      this.speed !== null && `${this.speed.toFixed(1)} tokens/s`,
      this.drafted > 0 && `acceptance ${percent(this.accepted / this.drafted)}`,
    ];
    this.facts.replaceChildren(
      ...facts.filter(Boolean).map((fact) => {
        const span = document.createElement("span");
        span.textContent = fact;
        return span;
      }),
    );
  }

  get speed() {
    const [first, last] = [this.times[0], this.times.at(-1)];
    return first && last[0] > first[0] ? (last[1] - first[1]) / (last[0] - first[0]) : null;
  }

  #place(sample) {
    if (!this.samples.has(sample)) {
      const place = this.element.appendChild(document.createElement("p"));
      place.className = "tokens";
      place.tabIndex = 0;
      place.setAttribute("role", "group");
      place.setAttribute("aria-label", `Tokens of sample ${sample + 1}`);
      this.samples.set(sample, place);
    }
    return this.samples.get(sample);
  }
}

export class Requests {
  constructor(section) {
    this.section = section;
    this.clear();
  }

  clear() {
    this.cards = new Map();
    this.fresh = new Set(); // Submitted while this page watched.
    this.section.replaceChildren();
  }

  update(message) {
    if (this.fresh.size > MOST_FRESH) this.fresh.clear();
    for (const id of message.submitted) this.fresh.add(id);
    if (message.missed) this.#missed(message.plans);
    for (const [id, plan] of Object.entries(message.plans)) {
      const card = this.#card(Number(id));
      if (card) card.plan = plan;
    }
    for (const turn of message.turns) this.#card(turn.request)?.add(turn, message.at);
    for (const { request, outcome } of message.ended) this.#end(request, outcome);
    for (const card of this.cards.values()) if (!card.over) card.describe("running");
    return [...this.cards.values()].filter((card) => !card.over).length;
  }

  #card(id) {
    if (!this.cards.has(id) && this.cards.size < MOST_CARDS) {
      const card = new Card(id, this.fresh.has(id));
      this.cards.set(id, card);
      this.section.prepend(card.element);
    }
    return this.cards.get(id);
  }

  // Events were dropped, perhaps the end of some requests.
  #missed(plans) {
    this.fresh.clear();
    for (const [id, card] of this.cards) {
      if (card.over) continue;
      card.gap();
      if (!(id in plans)) this.#end(id, "over");
    }
  }

  #end(id, outcome) {
    this.fresh.delete(id);
    const card = this.cards.get(id);
    if (!card) return;
    card.over = true;
    card.element.classList.add("over");
    card.describe(outcome);
    this.section.append(card.element);
    const over = [...this.cards].filter(([, one]) => one.over);
    for (const [old, one] of over.slice(0, -MOST_OVER)) {
      one.element.remove();
      this.cards.delete(old);
    }
  }
}

function token(origin, text) {
  const span = document.createElement("span");
  span.className = text ? `token ${origin}` : `token ${origin} block`;
  span.title = NAMES[origin];
  span.textContent = text ?? "";
  return span;
}

export function percent(share) {
  return `${Math.round(100 * share)} %`;
}
