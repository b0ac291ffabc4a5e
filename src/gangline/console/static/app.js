// The frame of the console: header, navigation, and the page that the address names.
import { render } from './vendor/htm-preact.js';
import { board, live, meta, signOut, start, totals } from './store.js';
import { ActionDialog, Empty, clock, html, number, repaint, useBoard, useEffect, useState } from './ui.js';
import { AllLeases, OneLease, OneWorker, Pools, Slots, Waits } from './slots.js';
import { Dead, Events, Gangs, History, Jobs, Queues, Routes, Schedules, Sets, System } from './work.js';

const PAGES = [
  ['', 'Slots', Slots],
  ['waits', 'Waits', Waits],
  ['pools', 'Pools', Pools],
  ['leases', 'Leases', AllLeases],
  ['gangs', 'Gangs', Gangs],
  ['sets', 'Sets', Sets],
  ['queues', 'Queues', Queues],
  ['jobs', 'Jobs', Jobs],
  ['schedules', 'Schedules', Schedules],
  ['dead', 'Dead', Dead],
  ['routes', 'Routes', Routes],
  ['events', 'Events', Events],
  ['history', 'History', History],
  ['system', 'System', System],
];
const HIDDEN = { worker: OneWorker, lease: OneLease };
const UNDER = { worker: 'pools', lease: 'leases' };

function address() {
  const [page = '', ...rest] = location.hash.replace(/^#\/?/, '').split('/');
  return { page, id: decodeURIComponent(rest.join('/')) };
}

const counts = {
  waits: () => Object.keys(board.waits).length,
  gangs: () => Object.values(board.gangs).filter((gang) => gang.state !== 'ended').length,
  leases: () => Object.keys(board.leases).length,
  sets: () => Object.keys(board.sets).length,
  queues: () => Object.keys(board.queues).length,
  pools: () => Object.keys(board.pools).length,
  routes: () => Object.keys(board.routes).length,
};

function Head() {
  useBoard();
  const leaders = Object.values(board.system).filter((row) => row.kind === 'leader');
  const leading = leaders.filter((row) => row.alive);
  const state = live.state === 'live' && !live.nats ? 'no connection to NATS' : live.state;
  return html`<header class="head">
    <a class="brand" href="#/"><svg viewBox="0 0 16 16" aria-hidden="true"><rect x="1" y="2" width="5.5" height="5.5" rx="1.5" /><rect x="9" y="2" width="5.5" height="5.5" rx="1.5" /><rect class="second" x="1" y="9.5" width="5.5" height="5.5" rx="1.5" /><rect class="hollow" x="9.5" y="10" width="4.5" height="4.5" rx="1.2" /></svg>Gangline</a>
    <span class="ns">${meta.namespace}</span>
    <span class="leader ${leaders.length && !leading.length ? 'bad' : ''}">${leading.length ? `leader since ${leading.map((row) => since(row.since)).join(', ')}` : leaders.length ? 'no leader' : 'no coordinator'}</span>
    <span class="live ${state === 'live' ? '' : 'off'}"><i />${state}</span>
    <${Theme} />
    ${meta.signs_out ? html`<button class="quiet" onClick=${signOut}>sign out</button>` : ''}
  </header>`;
}

function Theme() {
  const [theme, set] = useState(localStorage.getItem('theme') ?? '');
  useEffect(() => {
    document.documentElement.dataset.theme = theme;
    localStorage.setItem('theme', theme);
    repaint();
  }, [theme]);
  const next = { '': 'light', light: 'dark', dark: '' }[theme];
  return html`<button class="quiet theme" title="colours: ${theme || 'as the system'}" onClick=${() => set(next)}>${{ '': '◐', light: '○', dark: '●' }[theme]}</button>`;
}

function Nav({ page }) {
  useBoard();
  const dead = Object.keys(board.dead).length;
  return html`<nav aria-label="pages">${PAGES.map(([path, title]) => {
    const count = path === 'dead' ? dead : counts[path]?.();
    return html`<a key=${path} href="#/${path}" aria-current=${(UNDER[page] ?? page) === path ? 'page' : undefined}>${title}${count ? html`<i class=${path}>${number(count)}</i>` : ''}</a>`;
  })}</nav>`;
}

function App() {
  const [at, go] = useState(address());
  useEffect(() => {
    const moved = () => {
      go(address());
      scrollTo(0, 0);
    };
    addEventListener('hashchange', moved);
    return () => removeEventListener('hashchange', moved);
  }, []);
  const Page = HIDDEN[at.page] ?? (PAGES.find(([path]) => path === at.page) ?? PAGES[0])[2];
  return html`<${Head} /><${Nav} page=${at.page} /><${Notice} /><${Main}><${Page} id=${at.id} key=${`${at.page}/${at.id}`} /><//><${ActionDialog} />`;
}

/** A time of today, or with its date. */
const since = (at) => (new Date(at * 1000).toDateString() === new Date().toDateString() ? clock(at) : moment(at));

/** The page, once there is something to show; dimmed while what it shows may be old. */
function Main({ children }) {
  useBoard();
  if (!live.loaded) return html`<main aria-busy="true"><${Empty}>Loading …<//></main>`;
  return html`<main class=${stale() ? 'stale' : ''}>${children}</main>`;
}

const stale = () => live.loaded && (live.state !== 'live' || !live.nats);

function Notice() {
  useBoard();
  if (live.state === 'signed out') return html`<p class="notice" role="alert">Signed out: the console was restarted. Open the link that it prints in its terminal.</p>`;
  if (live.state === 'live' && !live.nats) return html`<p class="notice" role="alert">The console has no connection to NATS. This page shows what it knew at ${clock(live.natsAt)}.</p>`;
  if (stale()) return html`<p class="notice" role="alert">The console does not answer. This page shows what it knew at ${clock(live.at)}. If the console was restarted, open the link that it prints in its terminal; if only the connection failed, the page continues on its own.</p>`;
  const old = Object.values(board.system).filter((row) => row.kind === 'old');
  if (old.length) return html`<p class="notice" role="alert">${old.map((row) => html`<span key=${row.id}>${row.id === 'gangs' ? 'Gangs and sets' : 'Queues'} are shown as they were at ${since(row.at)}: ${row.why || 'nobody answers'}. </span>`)}</p>`;
  return null;
}

render(html`<${App} />`, document.getElementById('app'));
start();
export { totals };
