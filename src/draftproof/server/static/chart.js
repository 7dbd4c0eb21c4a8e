// A curve of the latest values, drawn as SVG; null leaves a gap.

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 120; // Values shown, one a second.
const HEIGHT = 40;

export class Chart {
  // `most`: the upper end of the scale; without it the scale follows the values.
  constructor(svg, name, format, most = null) {
    this.svg = svg;
    this.name = name;
    this.format = format;
    this.most = most;
    this.values = [];
    svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
    svg.setAttribute("preserveAspectRatio", "none");
    for (const y of [0, HEIGHT]) {
      const rule = this.#add("line", "rule");
      for (const [key, value] of Object.entries({ x1: 0, x2: WIDTH, y1: y, y2: y })) rule.setAttribute(key, value);
    }
    this.curve = this.#add("path", "curve");
    this.bound = svg.parentElement.appendChild(document.createElement("div"));
    this.bound.className = "bound";
  }

  push(value) {
    this.values.push(value);
    if (this.values.length > WIDTH) this.values.shift();
    this.#draw();
  }

  #add(kind, name) {
    const element = document.createElementNS(SVG, kind);
    element.setAttribute("class", name);
    return this.svg.appendChild(element);
  }

  #draw() {
    const known = this.values.filter((value) => value !== null);
    const highest = Math.max(0, ...known);
    const most = this.most ?? (highest || 1);
    const first = WIDTH - this.values.length;
    let path = "";
    let joined = false;
    this.values.forEach((value, i) => {
      if (value !== null) path += `${joined ? "L" : "M"}${first + i + 0.5} ${HEIGHT * (1 - value / most)}`;
      joined = value !== null;
    });
    this.curve.setAttribute("d", path);
    this.bound.textContent = `scale 0 to ${this.format(most)}, two minutes`;
    const now = this.values.at(-1);
    this.svg.setAttribute(
      "aria-label",
      `${this.name}: now ${now === null ? "unknown" : this.format(now)}, highest ${this.format(highest)}`,
    );
  }
}
