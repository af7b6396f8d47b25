// What goes between this page and the dashboard: events, the last hour, orders.
// The token stays in this tab, and goes into a header that no other page can have sent.

const TOKEN = "cenote-token";
// The dashboard says something every 5 seconds.
const SILENCE_MS = 15000;
const PAUSE_MS = 2000;

export const token = {
  get: () => sessionStorage.getItem(TOKEN) ?? "",
  set: (text) => sessionStorage.setItem(TOKEN, text.trim()),
  forget: () => sessionStorage.removeItem(TOKEN),
};

function headers() {
  const text = token.get();
  return text ? { Authorization: `Bearer ${text}` } : {};
}

async function problem(answer) {
  try {
    return (await answer.json()).error ?? answer.statusText;
  } catch {
    return answer.statusText;
  }
}

// Follows the dashboard for ever. `on.event(name, data)`, `on.state("live" | "lost")`, and
// `on.token(why)`, which resolves when there is another token.
export async function follow(on) {
  for (;;) {
    try {
      await read(on);
    } catch (error) {
      console.debug("the stream ended", error);
    }
    on.state("lost");
    await new Promise((done) => setTimeout(done, PAUSE_MS));
  }
}

async function read(on) {
  const silence = new AbortController();
  let timer = setTimeout(() => silence.abort(), SILENCE_MS);
  try {
    const answer = await fetch("/events", { headers: headers(), signal: silence.signal });
    if (answer.status === 401) {
      clearTimeout(timer);
      const had = token.get() !== "";
      token.forget();
      await on.token(had ? await problem(answer) : "");
      return read(on);
    }
    if (!answer.ok) throw new Error(await problem(answer));
    const texts = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await texts.read();
      if (done) return;
      clearTimeout(timer);
      timer = setTimeout(() => silence.abort(), SILENCE_MS);
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) tell(block, on);
      on.state("live");
    }
  } finally {
    clearTimeout(timer);
  }
}

function tell(block, on) {
  let name = "message";
  let data = "";
  for (const line of block.split("\n")) {
    if (line.startsWith("event: ")) name = line.slice(7);
    if (line.startsWith("data: ")) data += line.slice(6);
  }
  if (data) on.event(name, JSON.parse(data));
}

// The last hour of a volume, or of all; null when nothing is known of it.
export async function hour(volume) {
  const path = volume ? `/history/volumes/${encodeURIComponent(volume)}` : "/history";
  const answer = await fetch(path, { headers: headers() });
  return answer.ok ? answer.json() : null;
}

// Orders something: what was done, or an error that says why not.
export async function order(what) {
  const answer = await fetch("/orders", {
    method: "POST",
    headers: { ...headers(), "Content-Type": "application/json" },
    body: JSON.stringify(what),
  });
  if (answer.status === 401) token.forget();
  if (!answer.ok) throw new Error(await problem(answer));
  return (await answer.json()).done;
}
