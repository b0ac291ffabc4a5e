// The first screen: every slot, beside what waits and why. And the pages of workers, pools, leases and waits.
import { board, get, live, meta, totals } from './store.js';
import { Act, Cells, Commands, Component, Empty, Fact, Gang, Lease, Legend, Records, Spark, State, Table, Time, Told, Worker, asked, duration, html, moment, now, number, plural, short, useAnswer, useBoard, useState, useTick } from './ui.js';

const inOrder = (a, b) => a.localeCompare(b, 'en', { numeric: true });
const sorted = (rows) => Object.keys(rows).sort(inOrder);

let byWorker = { leases: null, revision: -1 };
/** Leases by worker; worked out once for each revision. */
function leasesOf(name) {
  if (byWorker.revision !== live.revision) {
    const leases = {};
    for (const lease of Object.values(board.leases)) (leases[`${lease.pool}.${lease.worker}`] ??= []).push(lease);
    byWorker = { revision: live.revision, leases };
  }
  return byWorker.leases[name] ?? NONE;
}
const NONE = [];

class SlotsRow extends Component {
  shouldComponentUpdate(next) {
    const { worker, slots, leases } = this.props;
    return next.worker !== worker || next.slots !== slots || next.leases.length !== leases.length || next.leases.some((lease, i) => lease !== leases[i]);
  }
  render({ name, worker, slots, leases }) {
    const gangs = slots.cells.filter(([kind]) => kind === 'gang' || kind === 'kept');
    return html`<div class="row ${worker.state}">
      <div class="who"><a href="#/worker/${name}">${worker.worker}</a><span class="place">${[worker.zone, worker.node].filter(Boolean).join('/')}</span>
        ${worker.state !== 'serving' && html`<${State} is=${worker.state} />`}</div>
      <${Cells} cells=${slots.cells} label=${name} />
      <div class="load">${slots.lost ? '' : `${Math.max(slots.running + slots.reserved, slots.leased + slots.gang)}/${slots.total}`}</div>
      <div class="chips">
        ${gangs.map(([kind, n, id]) => html`<a class="chip ${kind}" key=${kind + id} href="#/gangs/${id}" title="${kind === 'kept' ? 'kept for gang' : 'gang'} ${id}">${kind === 'kept' ? 'for ' : ''}${short(id)} <b>${n}</b></a>`)}
        ${byOwner(leases).map(([owner, held]) => html`<${LeaseChip} key=${owner} worker=${name} owner=${owner} leases=${held} />`)}
      </div>
    </div>`;
  }
}

const byOwner = (leases) => {
  const found = {};
  for (const lease of leases) (found[lease.owner] ??= []).push(lease);
  return Object.entries(found).sort((a, b) => inOrder(a[0], b[0]));
};

/** The leases of one owner on one worker: how many slots, and when the last of them ends. */
function LeaseChip({ worker, owner, leases }) {
  const slots = leases.reduce((sum, lease) => sum + lease.slots, 0);
  const last = Math.max(...leases.map((lease) => lease.expires_at));
  const href = leases.length === 1 ? `#/lease/${leases[0].id}` : `#/worker/${worker}`;
  return html`<a class="chip lease" href=${href} title="${plural(leases.length, 'lease')} of ${owner || 'nobody named'}, ${plural(slots, 'slot')}; the time is left unless they are renewed">
    ${owner ? short(owner) : short(leases[0].id)} <b>${slots}</b> <${Time} until=${last} /></a>`;
}

const FIRST = 40;
function PoolSlots({ pool, names, filter }) {
  const [all, setAll] = useState(false);
  const row = board.pools[pool] ?? {};
  const shown = all ? names : names.slice(0, FIRST);
  return html`<section class="pool">
    <header><h2><a href="#/pools/${pool}">${pool}</a></h2>
      <span>${plural(names.length, 'worker')}${row.lost ? html`, <b class="bad">${row.lost} lost</b>` : ''}${row.draining ? `, ${row.draining} draining` : ''}</span>
      <${Bar} row=${row} />
      <span class="load"><b>${number((row.total ?? 0) - (row.free ?? 0))}</b>/${number(row.total ?? 0)} in use</span>
    </header>
    ${shown.map((name) => html`<${SlotsRow} key=${name} name=${name} worker=${board.workers[name]} slots=${board.slots[name]} leases=${leasesOf(name)} />`)}
    ${names.length > shown.length && html`<button class="more" onClick=${() => setAll(true)}>show all ${names.length} workers</button>`}
  </section>`;
}

/** What the slots of a pool do, in one line. */
export function Bar({ row }) {
  const total = Math.max(1, row.total ?? 0);
  const held = (row.leased ?? 0) + (row.gang ?? 0) + (row.kept ?? 0);
  const parts = [['gang', row.gang], ['lease', row.leased], ['task', Math.max(0, total - (row.free ?? 0) - held)], ['kept', row.kept]];
  return html`<div class="bar" title="${plural(row.free ?? 0, 'slot')} of ${total} free">${parts.filter(([, n]) => n > 0).map(([kind, n]) => html`<i key=${kind} class=${kind} style=${{ width: `${(100 * n) / total}%` }} />`)}</div>`;
}

const matches = (name, filter) => {
  const worker = board.workers[name];
  const text = [name, worker.node, worker.zone, worker.state, ...worker.methods, ...Object.entries(worker.labels).map(([k, v]) => `${k}=${v}`), ...(board.slots[name]?.cells ?? []).map((c) => c[2]), ...leasesOf(name).map((l) => l.owner)].join(' ').toLowerCase();
  return filter.toLowerCase().split(/\s+/).every((word) => text.includes(word));
};

export function Slots() {
  useBoard();
  const [filter, setFilter] = useState('');
  const sum = totals();
  const names = sorted(board.workers).filter((name) => board.slots[name] && (!filter || matches(name, filter)));
  const pools = {};
  for (const name of names) (pools[board.workers[name].pool] ??= []).push(name);
  const waits = Object.values(board.waits);
  return html`<div class="first">
    <div class="tiles">
      <div class="tile"><span>slots in use</span><b>${number(sum.used)}<i>/${number(sum.total)}</i></b><${Spark} of="used" max="total" label="slots in use over five minutes" /></div>
      <div class="tile warm"><span>waiting</span><b>${number(sum.waiting)}</b><${Spark} of="waiting" label="what waited over five minutes" /></div>
      <div class="tile plain"><span>workers</span><b>${number(sum.workers)}</b><em class=${sum.lost ? 'bad' : ''}>${sum.lost ? `${sum.lost} lost` : 'all heard'}</em></div>
      <div class="tile plain"><span>gangs</span><b>${number(Object.values(board.gangs).filter((g) => g.state === 'formed').length)}</b><em>${number(sum.gangs)} waiting</em></div>
      <div class="tile plain"><span>leases</span><b>${number(Object.keys(board.leases).length)}</b><em>${plural(sum.kept, 'slot')} kept</em></div>
    </div>
    <div class="two">
      <section class="panel slots"><header><h1>Slots</h1><input class="filter" type="search" placeholder="filter: worker, node, task, owner" value=${filter} onInput=${(e) => setFilter(e.target.value)} aria-label="filter workers" /></header>
        ${Object.keys(pools).sort(inOrder).map((pool) => html`<${PoolSlots} key=${pool} pool=${pool} names=${pools[pool]} />`)}
        ${!names.length && html`<${Empty}>${filter ? 'No worker matches.' : html`No workers yet. Start one: <code>gangline worker MODULE:POOL</code>`}<//>`}
        <${Legend} />
      </section>
      <section class="panel waits"><header><h1>Waits, and why</h1><a href="#/waits">all</a></header><${WaitList} waits=${waits} most=${12} /></section>
    </div>
    <${Commands} lines=${['gangline workers --watch', 'gangline leases --watch', 'gangline top', `nats kv watch ${bucket()}`]} />
  </div>`;
}

export const bucket = (name = 'LEDGER') => `${(meta.namespace || 'gangline').toUpperCase()}_${name}`;

// -- waits --------------------------------------------------------------------------------------------------------------

const KINDS = { gang: 'gang', calls: 'calls', queue: 'queue', set: 'set' };
const heaviest = (a, b) => (a.kind === b.kind ? (a.place ?? 0) - (b.place ?? 0) || (a.since ?? 0) - (b.since ?? 0) : Object.keys(KINDS).indexOf(a.kind) - Object.keys(KINDS).indexOf(b.kind));

function WaitList({ waits, most }) {
  if (!waits.length) return html`<${Empty}>Nothing waits.<//>`;
  const shown = [...waits].sort(heaviest).slice(0, most);
  return html`<div class="waitlist">${shown.map((wait) => html`<${Wait} key=${wait.kind + wait.id} wait=${wait} />`)}
    ${waits.length > shown.length && html`<a class="more" href="#/waits">and ${waits.length - shown.length} more</a>`}</div>`;
}

function Wait({ wait }) {
  useTick();
  const link = { gang: `#/gangs/${wait.id}`, queue: `#/queues/${wait.id}`, calls: `#/pools/${wait.id}`, set: `#/sets/${wait.id}` }[wait.kind];
  const ends = (wait.obstacles ?? []).map((o) => o.ends_at).filter(Boolean);
  return html`<article class="wait ${wait.kind}">
    <header><span class="kind">${KINDS[wait.kind]}</span> <a href=${link} title=${wait.id}>${short(wait.id)}</a>
      <span class="count">${plural(wait.count, wait.unit.replace(/s$/, ''))}</span>
      <span class="age">${wait.since ? html`<${Time} since=${wait.since} plain=${1} />` : wait.age_s != null ? `oldest ${duration(wait.age_s)}` : ''}</span></header>
    ${wait.owner && html`<p class="owner">${wait.owner}${wait.priority ? `, priority ${wait.priority}` : ''}</p>`}
    ${wait.told?.length ? html`<${Told} sentences=${wait.told} most=${12} />` : wait.reasons.map((reason, i) => html`<p key=${i}>${reason}</p>`)}
    ${ends.length > 0 && ends.length === (wait.obstacles ?? []).length && html`<p class="dim">all of these end within ${duration(Math.max(...ends) - now())}, unless renewed</p>`}
  </article>`;
}

export function Waits() {
  useBoard();
  return html`<section class="panel waits wide"><header><h1>Waits, and why</h1></header><${WaitList} waits=${Object.values(board.waits)} most=${500} />
    <${Commands} lines=${['gangline why GANG|JOB', 'gangline gang ls', 'gangline queue ls', `nats req ${meta.namespace || 'gangline'}.gang.why '{"id": "GANG"}'`]} /></section>`;
}

// -- pools, workers, leases -----------------------------------------------------------------------------------------------

export function Pools({ id }) {
  useBoard();
  if (id) return html`<${Pool} id=${id} />`;
  const pools = Object.values(board.pools).sort((a, b) => inOrder(a.pool, b.pool));
  return html`<section class="panel"><header><h1>Pools</h1></header>
    <${Table} rowKey=${(p) => p.pool} rows=${pools} empty="No pools: no worker is registered." columns=${[
      ['pool', (p) => html`<a class="name" href="#/pools/${p.pool}">${p.pool}</a>`],
      ['workers', (p) => html`${p.workers}${p.lost ? html` <span class="bad">${p.lost} lost</span>` : ''}${p.draining ? html` <span class="warm">${p.draining} draining</span>` : ''}`, 'n'],
      ['use', (p) => html`<${Bar} row=${p} />`, 'grow'],
      ['slots', (p) => number(p.total), 'n'],
      ['free', (p) => number(p.free), 'n'],
      ['leased', (p) => number(p.leased), 'n'],
      ['gangs', (p) => number(p.gang), 'n'],
      ['kept', (p) => number(p.kept), 'n'],
      ['waiting', (p) => [p.waiting_calls && plural(p.waiting_calls, 'call'), p.waiting_gangs && plural(p.waiting_gangs, 'gang')].filter(Boolean).join(', ')],
      ['versions', (p) => versions(p.pool).join(', ')],
    ]} />
    <${Commands} lines=${['gangline workers', 'gangline stats POOL.WORKER', `nats kv ls ${bucket()}`]} /></section>`;
}

const versions = (pool) => [...new Set(Object.values(board.workers).filter((w) => w.pool === pool).map((w) => w.version))].filter(Boolean).sort();

function Pool({ id }) {
  const names = sorted(board.workers).filter((name) => board.workers[name].pool === id);
  const waits = Object.values(board.waits).filter((w) => (w.pools ?? [w.id]).includes(id));
  return html`<div class="two"><section class="panel slots"><header><h1>Pool ${id}</h1></header>
      ${names.length ? html`<${PoolSlots} pool=${id} names=${names} />` : html`<${Empty}>No worker of ${id} is registered.<//>`}
      <${Table} rowKey=${(n) => n} rows=${names} empty="" columns=${[
        ['worker', (n) => html`<${Worker} name=${n} />`],
        ['state', (n) => html`<${State} is=${board.workers[n].state} />`],
        ['place', (n) => [board.workers[n].zone, board.workers[n].node].filter(Boolean).join('/')],
        ['labels', (n) => Object.entries(board.workers[n].labels).map(([k, v]) => `${k}=${v}`).join(' ')],
        ['epoch', (n) => board.workers[n].epoch, 'n'],
        ['version', (n) => board.workers[n].version],
        ['up', (n) => html`<${Time} since=${board.workers[n].started_at} plain=${1} />`, 'n'],
      ]} /></section>
    <section class="panel waits"><header><h1>Waits for ${id}</h1></header><${WaitList} waits=${waits} most=${50} /></section>
    <${Commands} lines=${[`gangline workers ${id}`, `gangline leases ${id}`, `nats kv watch ${bucket()} 'lease.${id}.>'`]} /></div>`;
}

export function OneWorker({ id }) {
  useBoard();
  const worker = board.workers[id];
  const slots = board.slots[id];
  const heard = Boolean(worker) && worker.state !== 'lost';
  const { value: stats, error } = useAnswer(() => (heard ? get('worker', { name: id }) : Promise.resolve(null)), [id, heard], 2);
  if (!worker) return html`<${GoneWorker} id=${id} />`;
  const leases = leasesOf(id);
  return html`<section class="panel"><header><h1>${id}</h1><${State} is=${worker.state} />
      <div class="actions">
        <${Act} action="resize" label="Resize" title="Resize ${id}" text="Changes its number of slots while it runs. If fewer than are in use, it takes nothing new until they fit." body=${{ target: id }} fields=${[{ name: 'slots', label: 'Slots', type: 'number', min: 0, value: worker.slots, required: true }]} />
        <${Act} action="drain" label="Drain" danger title="Drain ${id}" text="It takes nothing new, finishes its tasks and exits." warning="A task in a thread goes on running until it ends; it cannot be stopped." body=${{ target: id }} fields=${[{ name: 'grace_s', label: 'Seconds after which running tasks are cancelled (empty: its own setting)', type: 'number', min: 0 }]} />
      </div></header>
    ${slots && html`<div class="big"><${Cells} cells=${slots.cells} label=${id} /></div>`}
    <dl class="facts">
      <${Fact} name="slots">${slots ? `${slots.total}: ${slots.running} running, ${slots.reserved} reserved, ${slots.free} free` : worker.slots}<//>
      <${Fact} name="place">${[worker.zone, worker.node, worker.address].filter(Boolean).join(' / ')}<//>
      <${Fact} name="labels">${Object.entries(worker.labels).map(([k, v]) => `${k}=${v}`).join('  ')}<//>
      <${Fact} name="tasks">${worker.methods.join(', ')}<//>
      <${Fact} name="models">${worker.models.join(', ')}<//>
      <${Fact} name="epoch">${worker.epoch}<//>
      <${Fact} name="process">${`pid ${worker.pid}, version ${worker.version}`}<//>
      <${Fact} name="up"><${Time} since=${worker.started_at} plain=${1} /><//>
      ${stats && html`<${Fact} name="since start">${Object.entries(stats.tasks).filter(([, n]) => n).map(([k, n]) => `${number(n)} ${k}`).join(', ') || 'no tasks'}<//>
        <${Fact} name="ledger">${`${stats.ledger.pending} writes pending, ${stats.ledger.retried} repeated`}<//>`}
      ${error && html`<${Fact} name="statistics"><span class="bad">${error}</span><//>`}
    </dl>
    <h2>Leases</h2>
    <${Leases} leases=${leases} />
    ${(stats?.gangs.length ?? 0) > 0 && html`<h2>Gangs</h2><${Table} rowKey=${(g) => g.gang + g.state} rows=${stats.gangs} empty="" columns=${[
      ['gang', (g) => html`<${Gang} id=${g.gang} />`],
      ['state', (g) => html`<${State} is=${g.state} />`],
      ['ranks', (g) => g.ranks.join(', ')],
      ['slots', (g) => g.slots, 'n'],
    ]} />`}
    <${Commands} lines=${[`gangline stats ${id}`, `gangline leases ${worker.pool}`, `gangline drain ${id} --reason '...'`, `gangline resize ${id} SLOTS --reason '...'`, `nats req ${meta.namespace || 'gangline'}.worker.${id}.stats ''`]} />
  </section>`;
}

/** A worker that is not registered: what it was, as far as this console or the history knows. */
function GoneWorker({ id }) {
  const was = board.gone[id];
  const happened = useAnswer(() => get('history', { worker: id }), [id], 5);
  const last = happened.value?.records.at(-1);
  const [pool] = id.split('.');
  return html`<section class="panel"><header><h1>${id}</h1><${State} is="gone" /></header>
    <p>${was ? (was.state === 'lost' ? 'This worker was lost: it stopped sending heartbeats before its registration ended.' : 'This worker has left.') : 'No worker of that name is registered.'}</p>
    <dl class="facts">
      <${Fact} name="last seen">${was?.last_seen_at ? html`${moment(was.last_seen_at)}, <${Time} since=${was.last_seen_at} />` : last ? html`${moment(last.at)}, by the history` : ''}<//>
      <${Fact} name="pool"><a href="#/pools/${pool}">${pool}</a><//>
      ${was && html`<${Fact} name="slots">${was.slots}<//><${Fact} name="place">${[was.zone, was.node, was.address].filter(Boolean).join(' / ')}<//>
        <${Fact} name="labels">${Object.entries(was.labels).map(([k, v]) => `${k}=${v}`).join('  ')}<//><${Fact} name="tasks">${was.methods.join(', ')}<//>
        <${Fact} name="process">${`pid ${was.pid}, version ${was.version}`}<//><${Fact} name="started">${moment(was.started_at)}<//><${Fact} name="epoch">${was.epoch}<//>`}
    </dl>
    <h2>What happened to it</h2><${Records} records=${[...(happened.value?.records ?? [])].reverse().slice(0, 50)} empty=${asked(happened, 'The history has nothing about it.')} />
    <${Commands} lines=${[`gangline history --worker ${id}`, `gangline workers ${pool}`]} /></section>`;
}

function Leases({ leases }) {
  return html`<${Table} rowKey=${(l) => l.id} rows=${[...leases].sort((a, b) => a.granted_at - b.granted_at)} empty="No leases." columns=${[
    ['lease', (l) => html`<${Lease} id=${l.id} />`],
    ['worker', (l) => html`<${Worker} name=${`${l.pool}.${l.worker}`} />`],
    ['slots', (l) => l.slots, 'n'],
    ['for', (l) => (l.single_use ? 'one task' : 'held')],
    ['owner', (l) => l.owner],
    ['age', (l) => html`<${Time} since=${l.granted_at} plain=${1} />`, 'n'],
    ['expires in', (l) => html`<${Time} until=${l.expires_at} />`, 'n'],
  ]} />`;
}

export function OneLease({ id }) {
  useBoard();
  const lease = board.leases[id];
  if (!lease) return html`<section class="panel"><header><h1>Lease ${short(id)}</h1></header><${Empty}>It has ended.<//></section>`;
  return html`<section class="panel"><header><h1>Lease ${short(id)}</h1></header><dl class="facts">
      <${Fact} name="id">${id}<//><${Fact} name="worker"><${Worker} name=${`${lease.pool}.${lease.worker}`} /><//>
      <${Fact} name="slots">${lease.slots}<//><${Fact} name="for">${lease.single_use ? 'one task' : 'as long as it is renewed'}<//>
      <${Fact} name="owner">${lease.owner}<//><${Fact} name="granted">${moment(lease.granted_at)}, <${Time} since=${lease.granted_at} /><//>
      <${Fact} name="expires in"><${Time} until=${lease.expires_at} /> unless renewed<//><${Fact} name="epoch">${lease.epoch}<//><${Fact} name="fence">${lease.fence}<//>
    </dl><p class="dim">Only its holder can release a lease. Its id here is public and admits nothing.</p>
    <${Commands} lines=${[`gangline leases ${lease.pool}`, `nats kv get ${bucket()} lease.${lease.pool}.${lease.worker}.${id.slice(1)}`]} /></section>`;
}

export function AllLeases() {
  useBoard();
  return html`<section class="panel"><header><h1>Leases</h1></header><${Leases} leases=${Object.values(board.leases)} /><${Commands} lines=${['gangline leases', 'gangline leases --watch', `nats kv watch ${bucket()} 'lease.>'`]} /></section>`;
}
