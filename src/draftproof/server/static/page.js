// Reads the server's events and shows them. The key, if one is needed, is kept in memory only.

import { Chart } from "./chart.js";
import { Requests, percent } from "./requests.js";

const RATE_S = 2; // Rates of the whole service are taken over so long.
const at = (id) => document.getElementById(id);
const speedChart = new Chart(at("speed-chart"), "tokens per second", (value) => value.toFixed(1));
const acceptanceChart = new Chart(at("acceptance-chart"), "acceptance", percent, 1);
const requests = new Requests(at("requests"));
let key = null;
let past = []; // Messages of the last seconds, for rates.
let drawn = -Infinity;

function show(message) {
  past.push(message);
  while (past.length > 2 && past[1].at <= message.at - RATE_S) past.shift();
  const old = past[0];
  const since = (name) => message[name] - old[name];
  const speed = message.at > old.at ? since("generated") / since("at") : null;
  const acceptance = since("drafted") ? since("accepted") / since("drafted") : null;
  if (message.at - drawn >= 1) {
    drawn = message.at;
    speedChart.push(speed);
    acceptanceChart.push(acceptance);
  }
  const [used, total] = message.cache;
  const figures = {
    speed: speed?.toFixed(1),
    acceptance: acceptance === null ? null : percent(acceptance),
    "per-call": since("calls") ? (since("generated") / since("calls")).toFixed(2) : null,
    running: message.running,
    waiting: message.waiting,
    rows: message.sequences,
    cache: `${used} of ${total}`,
  };
  for (const [id, value] of Object.entries(figures)) at(id).textContent = value ?? "–";
  at("cache-meter").value = total ? used / total : 0;
  at("hidden").hidden = message.shows_text;
  at("none").hidden = requests.update(message) > 0;
  tell(message.draining ? "draining: no new requests" : "live", true);
}

function tell(text, live) {
  if (at("status").textContent !== text) at("status").textContent = text;
  at("status").classList.toggle("live", live);
}

// Reads until the server ends the stream; EventSource could not send a key.
async function watch() {
  const headers = key === null ? {} : { Authorization: `Bearer ${key}` };
  const answer = await fetch("v1/events", { headers, cache: "no-store" });
  if (answer.status === 401 || answer.status === 403) return ask();
  if (!answer.ok) throw new Error(answer.status === 503 ? "too many pages watch" : `answer ${answer.status}`);
  requests.clear();
  past = [];
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw new Error("the server has gone");
    const parts = (text + value).split("\n\n");
    text = parts.pop();
    for (const part of parts) if (part.startsWith("data: ")) show(JSON.parse(part.slice(6)));
  }
}

function ask() {
  tell(key === null ? "a key is needed" : "this key is not known", false);
  at("door").showModal();
  return new Promise((resolve) => {
    at("door-form").onsubmit = (event) => {
      event.preventDefault();
      key = at("key").value;
      at("key").value = "";
      at("door").close();
      resolve();
    };
  });
}

for (;;) {
  try {
    await watch();
  } catch (error) {
    tell(`${error.message}; trying again`, false);
    await new Promise((resolve) => setTimeout(resolve, 2000));
  }
}
