// The board in the browser: rows by table and key, kept up to date by server-sent events.
export const root = document.querySelector('meta[name=root]').content;

export const TABLES = ['pools', 'workers', 'slots', 'gone', 'leases', 'gangs', 'waits', 'sets', 'queues', 'routes', 'system', 'jobs', 'dead', 'events'];
export const board = Object.fromEntries(TABLES.map((table) => [table, {}]));
export const live = { state: 'connecting', revision: 0, nats: true, loaded: false, at: 0, natsAt: 0 };
const SILENT_MS = 25_000; // The console sends something every ten seconds.
export const meta = { namespace: '', actions: [], payloads: false, user: '', signs_out: false, server: '', version: '' };

const listeners = new Set();
let scheduled = false;

export function listen(seen) {
  listeners.add(seen);
  return () => listeners.delete(seen);
}

export function changed() {
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(() => {
    scheduled = false;
    listeners.forEach((seen) => seen());
  });
}

/** Change the rows of one revision into those of the next; see board_core.apply. */
export function apply(delta) {
  if (delta.whole) for (const table of TABLES) board[table] = {};
  for (const [table, rows] of Object.entries(delta.rows)) Object.assign((board[table] ??= {}), rows);
  for (const [table, keys] of Object.entries(delta.gone)) for (const key of keys) delete board[table]?.[key];
  live.revision = delta.revision;
}

let source = null;
let lastId = '';
let retry = 0;

function open() {
  if (source || document.hidden) return;
  source = new EventSource(`${root}/api/stream${lastId ? `?after=${encodeURIComponent(lastId)}` : ''}`);
  const take = (event) => {
    lastId = event.lastEventId;
    apply(JSON.parse(event.data));
    live.state = 'live';
    live.loaded = true;
    heard();
    retry = 0;
    sample();
    changed();
  };
  source.addEventListener('board', take);
  source.addEventListener('delta', take);
  source.addEventListener('ping', (event) => {
    live.nats = event.data === '1';
    live.state = 'live';
    heard();
    changed();
  });
  source.onerror = () => {
    const gone = source && source.readyState === EventSource.CLOSED;
    live.state = 'connecting';
    changed();
    if (gone) {
      source.close();
      source = null;
      retry = Math.min(retry + 1, 6);
      setTimeout(async () => {
        const answer = await fetch(`${root}/api/meta`).catch(() => null);
        if (answer && answer.status === 401) {
          live.state = 'signed out';
          changed();
        } else open();
      }, retry > 1 ? 500 * 2 ** (retry - 2) : 0);
    }
  };
}

/** Something has come from the console just now. */
function heard() {
  live.at = Date.now() / 1000;
  if (live.nats) live.natsAt = live.at;
}

/** A connection can die without an error, for example while the computer sleeps. */
function watch() {
  if (!source || document.hidden || Date.now() - live.at * 1000 < SILENT_MS || !live.at) return;
  live.state = 'connecting';
  source.close();
  source = null;
  changed();
  open();
}

function close() {
  source?.close();
  source = null;
  live.state = 'paused';
}

export async function start() {
  document.addEventListener('visibilitychange', () => (document.hidden ? close() : open()));
  window.addEventListener('pagehide', close);
  Object.assign(meta, await get('meta').catch(() => ({})));
  live.nats = meta.connected !== false;
  open();
  setInterval(() => {
    sample();
    watch();
    if (!document.hidden) ticks.forEach((tick) => tick());
  }, 1000);
}

/** Called once a second while the page is seen, for times that pass. */
export const ticks = new Set();

// A ring of the last five minutes, in memory.
export const samples = [];
let sampledAt = 0;
function sample() {
  const now = Date.now();
  if (now - sampledAt < 1000) return;
  sampledAt = now;
  const sum = totals();
  samples.push({ at: now, used: sum.used, total: sum.total, waiting: sum.waiting });
  if (samples.length > 300) samples.shift();
}

export function totals() {
  const sum = { total: 0, used: 0, running: 0, kept: 0, free: 0, calls: 0, tasks: 0, gangs: 0, workers: 0, lost: 0, waiting: 0 };
  for (const pool of Object.values(board.pools)) {
    sum.total += pool.total;
    sum.free += pool.free;
    sum.running += pool.running;
    sum.kept += pool.kept;
    sum.workers += pool.workers;
    sum.lost += pool.lost;
    sum.calls += pool.waiting_calls;
  }
  for (const slots of Object.values(board.slots)) if (!slots.lost) sum.used += Math.min(slots.total, Math.max(slots.running + slots.reserved, slots.leased + slots.gang));
  for (const wait of Object.values(board.waits)) {
    if (wait.kind === 'queue') sum.tasks += wait.count;
    if (wait.kind === 'gang') sum.gangs += 1;
  }
  sum.waiting = sum.calls + sum.tasks + sum.gangs;
  return sum;
}

export async function get(what, fields = {}) {
  const query = new URLSearchParams(fields).toString();
  return read(await fetch(`${root}/api/${what}${query ? `?${query}` : ''}`));
}

export async function act(action, body) {
  return read(
    await fetch(`${root}/api/act/${action}`, {
      method: 'POST',
      headers: { 'Content-Type': 'application/json' },
      body: JSON.stringify(body),
    }),
  );
}

export async function signOut() {
  await fetch(`${root}/api/sign-out`, { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: '{}' });
  location.reload();
}

async function read(answer) {
  const body = await answer.json().catch(() => ({ message: `the console answered ${answer.status}` }));
  if (!answer.ok) throw new Error(body.message ?? `the console answered ${answer.status}`);
  return body;
}
