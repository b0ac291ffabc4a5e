// Pages of gangs, sets, queues, jobs, dead letters, routes, events and the system.
import { board, get, meta } from './store.js';
import { Act, Commands, Empty, Fact, Gang, Job, Records, State, Table, Time, Told, Worker, ask, asked, clock, duration, html, moment, now, number, plural, run, short, useAnswer, useBoard, useEffect, useState, useTick } from './ui.js';
import { bucket } from './slots.js';

const ns = () => meta.namespace || 'gangline';

// -- gangs --------------------------------------------------------------------------------------------------------------

const RANKED = ['formed', 'retiring', 'tearing_down', 'queued', 'ended'];

export function Gangs({ id }) {
  useBoard();
  if (id) return html`<${OneGang} id=${id} />`;
  const gangs = Object.values(board.gangs).sort((a, b) => RANKED.indexOf(a.state) - RANKED.indexOf(b.state) || b.created_at - a.created_at);
  return html`<section class="panel"><header><h1>Gangs</h1></header>
    <${Table} rowKey=${(g) => g.id} rows=${gangs} empty="No gangs." columns=${[
      ['gang', (g) => html`<${Gang} id=${g.id} />`],
      ['state', (g) => html`<${State} is=${phase(g)} />`],
      ['size', (g) => (g.sizes ? `${g.size} of ${g.sizes.join('..')}` : g.size), 'n'],
      ['pools', (g) => g.pools.join(', ')],
      ['owner', (g) => (g.gangset ? html`<a href="#/sets/${g.gangset}">set ${g.gangset}</a>` : g.owner)],
      ['priority', (g) => g.priority || '', 'n'],
      ['generations', (g) => html`<${Generations} gang=${g} />`, 'grow'],
      ['gen', (g) => g.generation, 'n'],
      ['age', (g) => html`<${Time} since=${g.created_at} plain=${1} />`, 'n'],
      ['last reason', (g) => g.reason],
    ]} />
    <${Commands} lines=${['gangline gang ls', 'gangline gang events', `nats req ${ns()}.gang.list ''`, `nats sub '${ns()}.event.gang.>'`]} /></section>`;
}

const phase = (gang) => (gang.state === 'formed' && gang.ready === false ? 'starting' : gang.state === 'queued' && gang.step !== 'queued' ? (gang.step ?? 'queued') : gang.state);

/** The life of a gang, from its events: one stretch for each state, with a mark where a generation begins. */
export function stretches(gang, until) {
  const found = [];
  const state = { queued: 'queued', formed: 'starting', ready: 'ready', torn_down: 'stopping', restarting: 'queued', member_lost: 'repair', recovered: 'ready', retiring: 'retiring', ended: null };
  const steps = gang.steps ?? [];
  const first = gang.created_at || steps[0]?.at;
  if (!first) return found;
  let from = first;
  let kind = steps.length && steps[0].kind !== 'queued' && gang.restarts ? 'unknown' : 'queued';
  let generation = 1;
  let reason = '';
  for (const step of steps) {
    const next = state[step.kind];
    if (next === undefined) continue;
    if (step.at > from && kind) found.push({ from, to: step.at, kind, generation, reason });
    from = Math.max(from, step.at);
    kind = next;
    generation = step.generation;
    reason = step.reason || (step.rank != null ? `rank ${step.rank}` : '');
  }
  if (!steps.length && gang.formed_at) {
    found.push({ from, to: gang.formed_at, kind: 'queued', generation: 1, reason: '' });
    from = gang.formed_at;
    kind = gang.state === 'formed' ? (gang.ready === false ? 'starting' : 'ready') : gang.state;
    generation = gang.generation;
  }
  if (kind && gang.state !== 'ended') found.push({ from, to: until, kind, generation, reason });
  return found;
}

function Generations({ gang, tall }) {
  useTick();
  const until = now();
  const all = stretches(gang, until);
  if (!all.length) return null;
  const begin = all[0].from;
  const span = Math.max(1, all.at(-1).to - begin);
  return html`<div class="line ${tall ? 'tall' : ''}">${all.map((s, i) => html`<i key=${i} class="${s.kind} ${i && all[i - 1].generation !== s.generation ? 'new' : ''}" style=${{ left: `${(100 * (s.from - begin)) / span}%`, width: `max(2px, ${(100 * (s.to - s.from)) / span}%)` }}
      title="generation ${s.generation}: ${s.kind} for ${duration(s.to - s.from)}${s.reason ? ` (${s.reason})` : ''}">${tall && s.to - s.from > span / 12 ? html`<span>${s.generation}</span>` : ''}</i>`)}</div>
    ${tall && html`<div class="axis"><span>${clock(begin)}</span><span>${clock(all.at(-1).to)}</span></div>`}`;
}

function OneGang({ id }) {
  const gang = board.gangs[id];
  const times = useAnswer(() => get('gang', { id }), [id, gang?.generation, gang?.state], gang?.seats?.length ? 2 : 0).value;
  if (!gang) return html`<section class="panel"><header><h1>Gang ${short(id)}</h1></header><${Empty}>There is no such gang, or it ended long ago.<//></section>`;
  const wait = board.waits[`gang:${id}`];
  const seats = [...(gang.seats ?? [])].sort((a, b) => a.rank - b.rank || a.part - b.part);
  return html`<section class="panel"><header><h1>Gang ${short(id)}</h1><${State} is=${phase(gang)} />
      <div class="actions">${gang.state !== 'ended' && html`<${Act} action="release" label="End" danger title="End gang ${short(id)}" text="Its members are stopped and its slots are free for others. Its owner learns the reason." warning="A member in a thread goes on running until it ends; it cannot be stopped." body=${{ target: id }} />`}</div></header>
    <${Generations} gang=${gang} tall=${1} />
    <p class="key"><i class="queued" /> queued <i class="starting" /> starting <i class="ready" /> ready <i class="repair" /> a member is replaced <i class="stopping" /> stopping</p>
    <dl class="facts">
      <${Fact} name="id">${id}<//><${Fact} name="owner">${gang.owner}<//><${Fact} name="set">${gang.gangset && html`<a href="#/sets/${gang.gangset}">${gang.gangset}</a>`}<//>
      <${Fact} name="generation">${gang.generation}<//>
      <${Fact} name="size">${plural(gang.size, 'member')}${gang.slots ? `, ${plural(gang.slots, 'slot')}` : ''}${gang.strategy ? `, ${gang.strategy}` : ''}<//>
      <${Fact} name="priority">${gang.priority}<//>
      <${Fact} name="restarts">${gang.restarts ? `${gang.restarts}, ${plural(gang.failures, 'failure')} of at most ${gang.max_restarts ?? 'any number'}` : ''}<//>
      <${Fact} name="requested">${moment(gang.created_at)}<//><${Fact} name="formed">${gang.formed_at ? moment(gang.formed_at) : ''}<//>
      <${Fact} name="fence">${gang.fence}<//><${Fact} name="last reason">${gang.reason && `${gang.reason}${gang.rank != null ? `, rank ${gang.rank}` : ''}`}<//>
      <${Fact} name="lost ranks">${(gang.lost ?? []).join(', ')}<//>
    </dl>
    ${wait && html`<h2>It waits</h2><div class="why"><${Told} sentences=${wait.told ?? []} /></div><${When} of=${{ gang: id }} key=${id} />`}
    ${seats.length > 0 && html`<h2>Members</h2><${Table} rowKey=${(s) => `${s.rank}.${s.part}`} rows=${seats} empty="" columns=${[
      ['rank', (s) => (s.part ? `${s.rank}+${s.part}` : s.rank), 'n'],
      ['worker', (s) => html`<${Worker} name=${`${s.pool}.${s.worker}`} />`],
      ['node', (s) => s.node],
      ['slots', (s) => s.slots, 'n'],
      ['now', (s) => html`<${Member} gang=${id} seat=${s} />`],
    ]} />`}
    ${times?.ranks.length > 0 && html`<h2>Time of each rank${times.generation === gang.generation ? '' : `, generation ${times.generation}`}</h2>
      ${times.told.map((line) => html`<p key=${line}>${line}</p>`)}
      <${Table} rowKey=${(r) => r.rank} rows=${[...times.ranks].sort((a, b) => b.worked_s - a.worked_s || a.rank - b.rank)} empty="" columns=${[
        ['rank', (r) => html`${r.rank}${r.rank === times.slowest ? html` <b class="slowest">slowest</b>` : ''}`],
        ['worker', (r) => html`<${Worker} name=${r.worker} />`],
        ['worked', (r) => duration(r.worked_s), 'n'],
        ['waited for others', (r) => duration(r.waiting_s), 'n'],
        ['tasks ended', (r) => r.ended, 'n'],
        ['last run', (r) => r.run || '', 'n'],
        ['worked in it', (r) => (r.run ? duration(r.run_worked_s) : ''), 'n'],
      ]} />`}
    <h2>What happened</h2>
    <${Table} rowKey=${(s) => `${s.at}${s.kind}`} rows=${[...(gang.steps ?? [])].reverse()} empty="Nothing since this console was started." columns=${[
      ['at', (s) => clock(s.at)],
      ['what', (s) => html`<${State} is=${s.kind} />`],
      ['generation', (s) => s.generation, 'n'],
      ['rank', (s) => s.rank ?? '', 'n'],
      ['reason', (s) => [s.reason, s.unconfirmed?.length ? `not confirmed by ${s.unconfirmed.join(', ')}` : '', s.slowest?.[0]].filter(Boolean).join('; '), 'grow'],
    ]} />
    <${Commands} lines=${[`gangline gang show ${id}`, `gangline why ${id}`, `gangline when ${id}`, `gangline gang events ${id}`, `gangline gang rm ${id} --reason '...'`, `nats req ${ns()}.gang.get '{"id": "${id}"}'`]} /></section>`;
}

function Member({ gang, seat }) {
  const name = `${seat.pool}.${seat.worker}`;
  const worker = board.workers[name];
  if (!worker || worker.state === 'lost') return html`<${State} is="lost" />`;
  const cells = board.slots[name]?.cells.find(([kind, , holder]) => kind === 'gang' && holder === gang);
  return cells ? `${cells[3]} of ${cells[1]} slots run` : '';
}

// -- sets ---------------------------------------------------------------------------------------------------------------

export function Sets({ id }) {
  useBoard();
  const sets = Object.values(board.sets).filter((s) => !id || s.name === id);
  return html`<section class="panel"><header><h1>${id ? `Set ${id}` : 'Sets'}</h1></header>
    <${Table} rowKey=${(s) => s.name} rows=${sets} empty="No standing sets. Declare one: gangline gangset apply FILE" columns=${[
      ['set', (s) => html`<a class="name" href="#/sets/${s.name}">${s.name}</a>`],
      ['state', (s) => html`<${State} is=${s.status?.state ?? 'unknown'} />`],
      ['ready', (s) => `${s.status?.ready ?? '?'}/${s.declared?.gangs ?? '-'}`, 'n'],
      ['formed', (s) => s.status?.formed ?? '', 'n'],
      ['old', (s) => s.status?.old || '', 'n'],
      ['shape', (s) => s.declared && `${plural(s.declared.size, 'member')}, ${plural(s.declared.slots, 'slot')} of ${s.declared.pools.join(', ')}`],
      ['why', (s) => s.status?.reason || s.status?.last_failure || '', 'grow'],
      ['', (s) => s.declared && html`<${Act} action="scale" label="Scale" title="Scale ${s.name}" text="Gangs are formed or retired until there are that many." body=${{ target: s.name }} fields=${[{ name: 'gangs', label: 'Gangs', type: 'number', min: 0, value: s.declared.gangs, required: true }]} />`],
    ]} />
    ${id && html`<h2>Its gangs</h2><${Table} rowKey=${(g) => g.id} rows=${Object.values(board.gangs).filter((g) => g.gangset === id)} empty="None." columns=${[
      ['gang', (g) => html`<${Gang} id=${g.id} />`],
      ['state', (g) => html`<${State} is=${phase(g)} />`],
      ['workers', (g) => g.seats.map((s) => `${s.pool}.${s.worker}`).join(', ')],
      ['generations', (g) => html`<${Generations} gang=${g} />`, 'grow'],
    ]} />`}
    <${Commands} lines=${['gangline gangset ls', 'gangline gangset scale SET N', `nats kv get ${bucket()} gangset.SET`]} /></section>`;
}

// -- queues, jobs ---------------------------------------------------------------------------------------------------------

export function Queues({ id }) {
  useBoard();
  const queues = Object.values(board.queues).filter((q) => !id || q.endpoint === id).sort((a, b) => b.depth - a.depth);
  const pause = (q) => {
    const route = board.routes[q.endpoint]?.route ?? null;
    const paused = Boolean(route?.queue?.paused);
    const { paused: _, ...queue } = route?.queue ?? {};
    const { queue: __, ...rest } = route ?? {};
    const rules = paused ? queue : { ...queue, paused: true };
    const next = { ...rest, ...(Object.keys(rules).length ? { queue: rules } : {}) };
    return { paused, body: { target: q.endpoint, route: Object.keys(next).length ? next : null, was: route } };
  };
  return html`<section class="panel"><header><h1>${id ? `Queue ${id}` : 'Queues'}</h1></header>
    <${Table} rowKey=${(q) => q.endpoint} rows=${queues} empty="No queues: nothing is submitted, and no dispatcher runs." columns=${[
      ['queue', (q) => html`<a class="name" href="#/queues/${q.endpoint}">${q.endpoint}</a>`],
      ['depth', (q) => number(q.depth), 'n'],
      ['running', (q) => number(q.running), 'n'],
      ['failed, waiting', (q) => number(q.waiting), 'n'],
      ['waits for', (q) => Object.entries(q.pending ?? {}).map(([what, n]) => `${what} ${number(n)}`).join(', ')],
      ['idle slots', (q) => `${q.credit}/${q.leased}`, 'n'],
      ['oldest', (q) => duration(q.oldest_s), 'n'],
      ['done', (q) => number(q.done), 'n'],
      ['dead', (q) => (q.dead ? html`<a href="#/dead">${number(q.dead)}</a>` : 0), 'n'],
      ['dispatcher', (q) => (q.dispatcher ? html`<span title=${q.dispatcher}>${short(q.dispatcher)}</span>` : html`<span class=${q.unanswered ? 'warm' : 'bad'} title=${q.unanswered}>${q.unanswered ? 'no answer' : 'nobody'}</span>`)],
      ['why', (q) => (board.waits[`queue:${q.endpoint}`]?.reasons ?? []).join('; '), 'grow'],
      ['', (q) => {
        const { paused, body } = pause(q);
        return html`<${Act} action="route" label=${paused ? 'Resume' : 'Pause'} title="${paused ? 'Resume' : 'Pause'} ${q.endpoint}" text=${paused ? 'Its tasks start again.' : 'Nothing is started; submitted tasks wait. What runs goes on.'} body=${body} />`;
      }],
    ]} />
    <${Commands} lines=${['gangline queue ls', `gangline queue show ${id ?? 'ENDPOINT'}`, `gangline route set ${id ?? 'ENDPOINT'} --pause`, `nats stream info ${bucket('TASKS')}`]} /></section>`;
}

const JOB_STATES = ['running', 'queued', 'waiting', 'scheduled', 'done', 'dead', 'cancelled'];

/** A job as it was listed, and what has been heard of it since. */
function newer(job) {
  const heard = board.jobs[job.job];
  const listed = job.ended_at ?? job.started_at ?? job.submitted_at ?? 0;
  if (!heard || heard.at <= listed || job.ended_at) return job;
  return { ...job, state: heard.state, attempts: heard.attempt || job.attempts, worker: heard.worker || job.worker, error: heard.error ?? job.error, reason: heard.reason ?? job.reason };
}

export function Jobs({ id }) {
  useBoard();
  const [state, setState] = useState('');
  const [endpoint, setEndpoint] = useState('');
  const [pages, setPages] = useState([null]);
  const cursor = pages.at(-1);
  const listed = useAnswer(() => get('jobs', { state, endpoint, ...(cursor && { cursor }) }), [state, endpoint, cursor, id], id ? 0 : 2);
  if (id) return html`<${OneJob} id=${id} />`;
  const only = (set) => (e) => {
    set(e.target.value);
    setPages([null]);
  };
  const endpoints = [...new Set([...Object.keys(board.queues), ...Object.keys(board.pools), ...Object.keys(board.routes)])].sort();
  const jobs = (listed.value?.jobs ?? []).map(newer).filter((j) => !state || j.state === state);
  return html`<section class="panel"><header><h1>Jobs</h1>
      <select value=${state} onChange=${only(setState)} aria-label="state"><option value="">all states</option>${JOB_STATES.map((s) => html`<option key=${s} value=${s}>${s}</option>`)}</select>
      <select value=${endpoint} onChange=${only(setEndpoint)} aria-label="endpoint"><option value="">all endpoints</option>${endpoints.map((e) => html`<option key=${e} value=${e}>${e}</option>`)}</select>
      <${FindJob} /></header>
    <p class="dim">Unfinished jobs in the order of submission, then delayed ones, then ended ones for as long as their results are kept.</p>
    ${listed.value?.unanswered?.length > 0 && html`<p class="dim">No dispatcher says which tasks of ${listed.value.unanswered.join(', ')} are running: they are listed as queued or waiting.</p>`}
    <${Table} rowKey=${(j) => j.job} rows=${jobs} empty=${asked(listed, state || endpoint ? 'No such job.' : 'No jobs. Submit one: gangline submit ENDPOINT.TASK')} columns=${[
      ['job', (j) => html`<${Job} id=${j.job} title=${j.title} />`],
      ['task', (j) => `${j.endpoint}.${j.method}`],
      ['state', (j) => html`<${State} is=${j.state} />`],
      ['attempts', (j) => j.attempts || '', 'n'],
      ['worker', (j) => j.worker && html`<${Worker} name=${j.worker} />`],
      ['submitted', (j) => j.submitted_at && html`<${Time} since=${j.submitted_at} />`, 'n'],
      ['took', (j) => (j.ended_at && j.started_at ? duration(j.ended_at - j.started_at) : j.state === 'running' && j.started_at ? html`<${Time} since=${j.started_at} plain=${1} />` : ''), 'n'],
      ['', (j) => (j.state === 'waiting' && j.next_try_at ? html`next attempt in <${Time} until=${j.next_try_at} />; ` : '')],
      ['error', (j) => j.error?.message ?? j.reason ?? '', 'grow'],
    ]} />
    <div class="actions">${pages.length > 1 && html`<button class="act" onClick=${() => setPages(pages.slice(0, -1))}>Earlier in the list</button>`}
      ${listed.value?.next && html`<button class="act" onClick=${() => setPages([...pages, listed.value.next])}>Further down the list</button>`}</div>
    <${Commands} lines=${['gangline jobs ls', 'gangline jobs ls --watch', 'gangline status JOB', 'gangline result JOB', `nats sub '${ns()}.job.*.state'`]} /></section>`;
}

/** Takes the beginning of an id, too. */
function FindJob() {
  const [wanted, want] = useState('');
  const [error, setError] = useState('');
  const find = async (event) => {
    event.preventDefault();
    if (!wanted) return;
    try {
      location.hash = `#/jobs/${(await get('find', { id: wanted })).id}`;
    } catch (failed) {
      setError(failed.message);
    }
  };
  return html`<form class="find" onSubmit=${find}><input class="filter" type="search" placeholder="find a job by its id" value=${wanted} onInput=${(e) => {
      want(e.target.value.trim());
      setError('');
    }} aria-label="job id" />${error && html`<p class="error" role="alert">${error}</p>`}</form>`;
}

/** When a waiting gang or job can start, as `gangline when` prints it; see board/outlook.py. */
function When({ of }) {
  const { value } = useAnswer(() => get('when', of), [of.gang, of.job], 2);
  const told = value?.told.slice(1) ?? [];
  return told.length > 0 && html`<h2>When it can start</h2><div class="why when"><${Told} sentences=${told} /></div>`;
}

function OneJob({ id }) {
  const { value: job, error } = useAnswer(() => get('job', { id }), [id], 2);
  const { value: why } = useAnswer(() => get('why', { job: id }), [id], 2);
  if (!job) return html`<section class="panel"><header><h1>Job ${short(id)}</h1></header><${Empty}>${error ?? 'Loading …'}<//></section>`;
  const letter = job.letter;
  return html`<section class="panel"><header><h1>Job ${run(id, job.title)}</h1><${State} is=${job.state} />
      <div class="actions">
        ${['queued', 'waiting', 'scheduled', 'running'].includes(job.state) && html`<${Act} action="cancel" label="Cancel" danger title="Cancel job ${run(id, job.title)}" text="It does not start again. If it runs, it is stopped." warning="A task in a thread goes on running until it ends; it cannot be stopped." body=${{ target: id }} />`}
        ${letter && html`<${Act} action="replay" label="Run again" title="Run ${run(id, job.title)} again" text="It is queued under its id, with a fresh set of attempts." body=${{ jobs: [id] }} /><${Act} action="drop" label="Drop" danger title="Drop ${run(id, job.title)}" text="The dead letter is deleted." body=${{ jobs: [id] }} />`}
      </div></header>
    <dl class="facts">
      <${Fact} name="id">${job.job}<//><${Fact} name="run">${job.schedule && job.title}<//><${Fact} name="task">${`${job.endpoint}.${job.method}`}<//><${Fact} name="attempts">${job.attempts}<//>
      <${Fact} name="worker">${job.worker && html`<${Worker} name=${job.worker} />`}<//><${Fact} name="key">${job.key}<//><${Fact} name="priority">${job.priority || ''}<//>
      <${Fact} name="submitted">${moment(job.submitted_at)}<//><${Fact} name="started">${moment(job.started_at)}<//>
      <${Fact} name="next attempt">${job.next_try_at && html`in <${Time} until=${job.next_try_at} />`}<//><${Fact} name="reason">${job.reason}<//>
      <${Fact} name="trace">${letter?.trace}<//>
    </dl>
    ${(why?.obstacles.length ?? 0) > 0 && html`<h2>It waits</h2><div class="why"><${Told} sentences=${why.told.slice(1)} moments=${1} /></div><${When} of=${{ job: id }} key=${id} />`}
    ${job.tries.length > 0 && html`<h2>Failed attempts</h2><${Table} rowKey=${(t) => t.attempt} rows=${job.tries} empty="" columns=${[
      ['attempt', (t) => t.attempt, 'n'],
      ['worker', (t) => t.worker],
      ['ended', (t) => clock(t.ended_at)],
      ['took', (t) => (t.started_at ? duration(t.ended_at - t.started_at) : ''), 'n'],
      ['error', (t) => t.error?.message ?? '', 'grow'],
    ]} />`}
    <${Failure} error=${letter?.error ?? job.error} />
    ${meta.payloads && letter && html`<h2>Arguments</h2><pre>${JSON.stringify(letter.arguments, null, 2)}</pre>`}
    ${meta.payloads && job.result !== undefined && html`<h2>Result</h2><pre>${JSON.stringify(job.result, null, 2)}</pre>`}
    <${Commands} lines=${[`gangline status ${id}`, `gangline why ${id}`, `gangline when ${id}`, `gangline cancel ${id}`, ...(letter ? [`gangline dead show ${id}`, `gangline dead replay ${id}`] : [])]} /></section>`;
}

const Failure = ({ error }) => (error ? html`<h2>Last error</h2><div class="failure"><b>${error.type ?? error.code}</b> ${error.message}${error.traceback && html`<pre>${error.traceback}</pre>`}</div>` : null);

// -- schedules --------------------------------------------------------------------------------------------------------------

export function Schedules() {
  useBoard();
  const [round, again] = useState(0);
  const listed = useAnswer(() => get('schedules'), [], 5, round);
  const done = () => again((n) => n + 1);
  const change = (s, what, label, title, text, danger) => meta.actions.includes('schedule') && html`<button class=${danger ? 'act danger' : 'act'} onClick=${() => ask({ action: 'schedule', title: `${title} ${s.name || short(s.id)}`, text, danger, body: { target: s.id, change: what }, done })}>${label}</button>`;
  return html`<section class="panel"><header><h1>Schedules</h1></header>
    <${Table} rowKey=${(s) => s.id} rows=${listed.value?.schedules ?? []} empty=${asked(listed, 'No schedules. Declare one: gangline submit --cron, or @pool.task(cron=...)')} columns=${[
      ['schedule', (s) => html`<span class="name" title=${s.id}>${s.name || short(s.id)}</span>`],
      ['task', (s) => s.target],
      ['when', (s) => html`<code>${s.cron}</code> ${s.time_zone}`],
      ['state', (s) => html`<${State} is=${s.paused_at ? 'paused' : 'active'} />`],
      ['next run', (s) => (s.paused_at ? html`paused <${Time} since=${s.paused_at} />` : s.next_at ? html`in <${Time} until=${s.next_at} />` : '')],
      ['declared', (s) => html`<${Time} since=${s.declared_at} />${s.in_code && ' in code'}`],
      ...(meta.payloads ? [['arguments', (s) => html`<code>${JSON.stringify(s.arguments)}</code>`, 'grow']] : []),
      ['', (s) => html`<div class="actions">${s.paused_at ? change(s, 'resume', 'Resume', 'Resume', 'It has its next run at its next time. Runs that it missed are not made up for.') : change(s, 'pause', 'Pause', 'Pause', 'It has no further runs until it is resumed, also if a program declares it again. Runs that have begun continue.')}${change(s, 'rm', 'Remove', 'Remove', s.in_code ? 'Its task declares it with cron=: it comes back when a dispatcher takes over the queue, or when a worker with other declarations starts. To stop it for good, remove cron=, or pause it. Runs that have begun continue.' : 'It has no further runs, unless a program declares it again. Runs that have begun continue.', true)}</div>`],
    ]} />
    <${Commands} lines=${['gangline schedules ls', 'gangline schedules show SCHEDULE', "gangline schedules pause SCHEDULE --reason '...'", `nats stream view ${bucket('SCHED')}`]} /></section>`;
}

// -- dead letters -----------------------------------------------------------------------------------------------------------

export function Dead() {
  useBoard();
  const [round, again] = useState(0);
  const seen = Object.keys(board.dead).length;
  const { value, error } = useAnswer(() => get('dead'), [], 0, `${round} ${seen}`);
  const done = () => setTimeout(() => again((n) => n + 1), 300);
  if (!value) return html`<section class="panel"><header><h1>Dead letters</h1></header><${Empty}>${error ?? 'Loading …'}<//></section>`;
  return html`<section class="panel"><header><h1>Dead letters</h1><span class="dim">${plural(value.count, 'task')} in ${plural(value.groups.length, 'group')} by cause${value.count >= value.most ? ', the newest only' : ''}</span></header>
    ${!value.groups.length && html`<${Empty}>No dead letters.<//>`}
    ${value.groups.map((group) => html`<${Group} key=${group.id} group=${group} done=${done} />`)}
    <${Commands} lines=${['gangline dead ls', 'gangline dead show JOB', 'gangline dead replay JOB...', `nats stream view ${bucket('DEAD')}`]} /></section>`;
}

function Group({ group, done }) {
  const [open, setOpen] = useState(false);
  const [most, setMost] = useState(20);
  const act = (action, title, text, danger) => meta.actions.includes(action) && html`<button class=${danger ? 'act danger' : 'act'} onClick=${() => ask({ action, title, text, danger, body: { jobs: group.jobs }, done })}>${title.split(' ')[0]}</button>`;
  return html`<article class="group"><header><button class="fold" aria-expanded=${open} onClick=${() => setOpen(!open)}>${open ? '▾' : '▸'}</button>
      <b class="many">${number(group.count)}</b><span class="name">${group.target}</span><${State} is=${group.reason} /><span class="age">last <${Time} since=${group.last_at} /></span>
      <div class="actions">${act('replay', `Replay ${plural(group.count, 'task')}`, 'Exactly these are queued again under their ids, each with a fresh set of attempts.')}${act('drop', `Drop ${plural(group.count, 'task')}`, 'Exactly these dead letters are deleted.', true)}</div></header>
    <p class="cause">${group.cause || group.code || 'no error'}</p>
    ${open && html`<div class="jobs">${group.jobs.map((job, i) => html`<${Job} key=${job} id=${job} title=${group.titles[i]} />`).slice(-most).reverse()}${group.jobs.length > most && html`<button class="quiet" onClick=${() => setMost(most * 5)}>more</button>`}</div><${Last} job=${group.jobs.at(-1)} />`}
  </article>`;
}

function Last({ job }) {
  const { value } = useAnswer(() => get('letter', { job }), [job], 0);
  return value ? html`<${Failure} error=${value.error} />` : null;
}

// -- routes -----------------------------------------------------------------------------------------------------------------

export function Routes({ id }) {
  useBoard();
  const routes = Object.values(board.routes).filter((r) => !id || r.endpoint === id);
  const share = (r) => {
    const total = Object.values(r.to).reduce((a, b) => a + b, 0) || 1;
    return Object.entries(r.to).map(([pool, w]) => `${pool} ${+((100 * w) / total).toFixed(1)}%`).join(', ');
  };
  return html`<section class="panel"><header><h1>${id ? `Route ${id}` : 'Routes'}</h1></header>
    <${Table} rowKey=${(r) => r.endpoint} rows=${routes} empty="No routes: every endpoint is the pool of its name." columns=${[
      ['endpoint', (r) => html`<a class="name" href="#/routes/${r.endpoint}">${r.endpoint}</a>`],
      ['to', (r) => (r.error ? html`<span class="bad">not followed: ${r.error}</span>` : share(r))],
      ['copies to', (r) => Object.entries(r.route?.shadow ?? {}).map(([p, n]) => `${p} ${n}%`).join(', ')],
      ['limits', (r) => Object.entries(r.route?.limits ?? {}).map(([p, n]) => `${p} ${n}`).join(', ')],
      ['queue', (r) => Object.entries(r.route?.queue ?? {}).map(([k, v]) => (v === true ? k : `${k} ${v}`)).join(', '), 'grow'],
      ['missing', (r) => (r.error ? '' : Object.keys(r.to).filter((p) => !board.pools[p]?.workers).map((p) => `no worker of ${p}`).join(', '))],
    ]} />
    ${(id || meta.actions.includes('route')) && html`<${Editor} endpoint=${id ?? ''} key=${id ?? ''} />`}
    <${Commands} lines=${['gangline route ls', `gangline route set ${id ?? 'ENDPOINT'} --to POOL=WEIGHT`, `nats kv get ${bucket('ROUTES')} ${id ?? 'ENDPOINT'}`]} /></section>`;
}

const lines = (route) => (route ? JSON.stringify(route, null, 2).split('\n') : []);

/** Which lines go and which come: the longest common subsequence stays. */
export function diff(before, after) {
  const table = Array.from({ length: before.length + 1 }, () => new Array(after.length + 1).fill(0));
  for (let i = before.length - 1; i >= 0; i--) for (let j = after.length - 1; j >= 0; j--) table[i][j] = before[i] === after[j] ? table[i + 1][j + 1] + 1 : Math.max(table[i + 1][j], table[i][j + 1]);
  const out = [];
  let [i, j] = [0, 0];
  while (i < before.length || j < after.length) {
    if (i < before.length && j < after.length && before[i] === after[j]) out.push([' ', before[i++], j++]);
    else if (j >= after.length || (i < before.length && table[i + 1][j] >= table[i][j + 1])) out.push(['-', before[i++]]);
    else out.push(['+', after[j++]]);
  }
  return out.map(([sign, text]) => [sign, text]);
}

function Editor({ endpoint }) {
  const now = board.routes[endpoint]?.route ?? null;
  const [name, setName] = useState(endpoint);
  const [text, setText] = useState(null);
  const shown = text ?? JSON.stringify(now ?? { to: { [endpoint || 'POOL']: 1 } }, null, 2);
  const was = board.routes[name]?.route ?? null;
  let wanted = null;
  let wrong = '';
  try {
    wanted = shown.trim() ? JSON.parse(shown) : null;
  } catch (error) {
    wrong = error.message;
  }
  const changes = wrong ? [] : diff(lines(was), lines(wanted));
  const different = changes.some(([sign]) => sign !== ' ');
  return html`<h2>Change</h2><div class="editor">
    <div>${!endpoint && html`<label>Endpoint<input value=${name} onInput=${(e) => setName(e.target.value.trim())} /></label>`}
      <textarea spellcheck="false" rows="10" aria-label="route as JSON" value=${shown} onInput=${(e) => setText(e.target.value)} /></div>
    <div class="diff">${wrong ? html`<p class="bad">${wrong}</p>` : different ? changes.map(([sign, line], i) => html`<div key=${i} class=${{ '+': 'plus', '-': 'minus' }[sign] ?? ''}>${sign} ${line}</div>`) : html`<p class="dim">No change.</p>`}</div></div>
    <div class="actions">${different && name && html`<${Act} action="route" label=${wanted ? 'Set this route' : 'Delete the route'} title=${wanted ? `Set the route of ${name}` : `Delete the route of ${name}`} text="Every client, gateway and dispatcher follows it within a second." body=${{ target: name, route: wanted, was }} danger=${!wanted} />`}
      ${!meta.actions.includes('route') && html`<span class="dim">This console only shows: <code>--actions route</code> lets it set routes.</span>`}</div>`;
}

// -- history ------------------------------------------------------------------------------------------------------------------

const SPANS = [['15 min', 900], ['1 h', 3600], ['6 h', 21600], ['1 day', 86400], ['1 week', 604800]];

/** What the history stream keeps: a slider through time, who held what then, and what happened around it. */
export function History() {
  const [span, setSpan] = useState(900);
  const [round, again] = useState(0);
  const [end, setEnd] = useState(now());
  const [at, setAt] = useState(null);
  const [filter, setFilter] = useState('');
  useEffect(() => {
    if (at != null) return undefined; // somebody looks at a moment
    const timer = setInterval(() => {
      if (document.hidden) return;
      setEnd(now());
      again((n) => n + 1);
    }, 5000);
    return () => clearInterval(timer);
  }, [at]);
  const moment_ = at ?? end;
  const happened = useAnswer(() => get('history', { since: end - span }), [span], 0, round);
  const then = useAnswer(() => get('held', { at: moment_ }), [at], 0, moment_);
  const records = happened.value?.records ?? [];
  const shown = records.filter((r) => r.at <= moment_ && (!filter || JSON.stringify(r).toLowerCase().includes(filter.toLowerCase()))).reverse();
  const held = then.value?.held ?? [];
  return html`<section class="panel"><header><h1>History</h1><span class="spans">${SPANS.map(([text, s]) => html`<button key=${s} class=${s === span ? 'act primary' : 'act'} onClick=${() => {
        setSpan(s);
        setEnd(now());
        setAt(null);
      }}>${text}</button>`)}<button class="act" onClick=${() => {
        setEnd(now());
        setAt(null);
        again((n) => n + 1);
      }}>now</button></span><input class="filter" type="search" placeholder="filter" value=${filter} onInput=${(e) => setFilter(e.target.value)} aria-label="filter the history" /></header>
    <div class="slider"><${Density} records=${records} from=${end - span} to=${end} /><input type="range" min=${end - span} max=${end} step=${span / 600} value=${moment_} aria-label="time" onPointerDown=${() => setAt(moment_)} onChange=${(e) => setAt(Number(e.target.value))} onInput=${(e) => (document.getElementById('then').textContent = moment(Number(e.target.value)))} />
      <div class="axis"><span>${moment(end - span)}</span><b id="then">${moment(moment_)}</b><span>${moment(end)}</span></div></div>
    <h2>Who held slots then</h2>
    <${Table} rowKey=${(r) => r.gang || r.lease} rows=${held} empty=${asked(then, 'Nothing is recorded as held then. Leases of less than a second are only counted.')} columns=${[
      ['holder', (r) => (r.gang ? html`<${Gang} id=${r.gang} />` : html`<span class="name lease" title=${r.lease}>${short(r.lease)}</span>`)],
      ['owner', (r) => r.owner],
      ['on', (r) => html`<span class="name">${(r.workers ?? [[r.pool, r.worker].filter(Boolean).join('.')]).join(', ')}</span>`, 'grow'],
      ['slots', (r) => r.slots ?? '', 'n'],
      ['since', (r) => moment(r.at)],
      ['held for', (r) => duration(moment_ - r.at), 'n'],
    ]} />
    <h2>What happened until then</h2>
    <${Records} records=${shown.slice(0, 300)} empty=${asked(happened, 'Nothing is recorded.')} />
    <${Commands} lines=${['gangline history', "gangline history --held-at '14:03'", `nats stream view ${bucket('HISTORY')}`]} /></section>`;
}

/** How much happened when. */
function Density({ records, from, to }) {
  const most = 120;
  const counts = new Array(most).fill(0);
  for (const r of records) {
    const i = Math.floor(((r.at - from) / (to - from)) * most);
    if (i >= 0 && i < most) counts[i] += r.count || 1;
  }
  const top = Math.max(1, ...counts);
  return html`<div class="density" aria-hidden="true">${counts.map((n, i) => html`<i key=${i} style=${{ height: `${n ? 8 + (92 * n) / top : 0}%` }} />`)}</div>`;
}

// -- events, system -----------------------------------------------------------------------------------------------------------

export function Events() {
  useBoard();
  const [filter, setFilter] = useState('');
  const rows = Object.entries(board.events).map(([key, row]) => ({ key, ...row })).sort((a, b) => (a.key < b.key ? 1 : -1));
  const shown = filter ? rows.filter((r) => `${r.kind} ${r.subject} ${r.text}`.toLowerCase().includes(filter.toLowerCase())) : rows;
  return html`<section class="panel"><header><h1>Events</h1><input class="filter" type="search" placeholder="filter" value=${filter} onInput=${(e) => setFilter(e.target.value)} aria-label="filter events" /></header>
    <p class="dim">The last ${300} events since this console was started.</p>
    <${Table} rowKey=${(e) => e.key} rows=${shown} empty="No events yet." columns=${[
      ['at', (e) => clock(e.at)],
      ['what', (e) => html`<${State} is=${e.kind} />`],
      ['who', (e) => html`<${Subject} event=${e} />`],
      ['', (e) => e.text, 'grow'],
    ]} />
    <${Commands} lines=${['gangline gang events', `nats sub '${ns()}.event.>'`]} /></section>`;
}

function Subject({ event }) {
  const [kind] = event.kind.split(' ');
  if (kind === 'gang') return html`<${Gang} id=${event.subject} />`;
  if (kind === 'worker') return html`<${Worker} name=${event.subject} />`;
  if (kind === 'task') return html`<${Job} id=${event.subject} />`;
  return html`<span title=${event.subject}>${short(event.subject)}</span>`;
}

export function System() {
  useBoard();
  const rows = Object.values(board.system);
  const leaders = rows.filter((r) => r.kind === 'leader');
  const { value: audit, error } = useAnswer(() => get('audit'), [], 10);
  const skew = {};
  for (const worker of Object.values(board.workers)) skew[worker.version || 'unknown'] = (skew[worker.version || 'unknown'] ?? 0) + 1;
  return html`<section class="panel"><header><h1>System</h1></header>
    <dl class="facts"><${Fact} name="server">${meta.server}<//><${Fact} name="namespace">${meta.namespace}<//><${Fact} name="console">${`version ${meta.version}, ${meta.actions.length ? `may ${meta.actions.join(', ')}` : 'only shows'}`}<//>
      <${Fact} name="versions of workers">${Object.entries(skew).map(([v, n]) => `${v}: ${n}`).join(', ')}${Object.keys(skew).length > 1 ? html` <span class="warm">differ</span>` : ''}<//></dl>
    <h2>Coordinators</h2><${Table} rowKey=${(r) => r.id} rows=${leaders} empty="No coordinator has led yet: start gangline coordinator." columns=${[
      ['shard', (r) => r.id || 'all pools'],
      ['leader', (r) => html`<span title=${r.instance}>${short(r.instance)}</span>`],
      ['term', (r) => r.term, 'n'],
      ['state', (r) => html`<${State} is=${r.alive ? 'leading' : 'silent'} />`],
      ['since', (r) => html`<${Time} since=${r.since} />`],
    ]} />
    <h2>Dispatchers</h2><${Table} rowKey=${(r) => r.id} rows=${rows.filter((r) => r.kind === 'dispatcher')} empty="No dispatcher runs: submitted tasks wait." columns=${[
      ['dispatcher', (r) => html`<span title=${r.id}>${short(r.id)}</span>`],
      ['queues', (r) => r.queues, 'n'],
    ]} />
    <h2>Services</h2><${Table} rowKey=${(r) => r.id} rows=${rows.filter((r) => r.kind === 'service')} empty="None has answered." columns=${[
      ['service', (r) => r.name],
      ['id', (r) => html`<span title=${r.id}>${short(r.id)}</span>`],
      ['version', (r) => r.version],
    ]} />
    <h2>What operators did</h2>${error ? html`<${Empty}>${error}<//>` : html`<${Table} rowKey=${(e) => e.id + e.stage} rows=${[...(audit?.entries ?? [])].reverse()} empty=${asked({ value: audit }, audit?.note ?? 'Nothing is recorded.')} columns=${[
      ['at', (e) => moment(e.at)],
      ['who', (e) => e.user],
      ['did', (e) => e.action],
      ['to', (e) => e.target],
      ['', (e) => html`<${State} is=${e.stage} />`],
      ['why', (e) => e.reason, 'grow'],
    ]} />`}
    <${Commands} lines=${['gangline audit', 'gangline health', 'nats service ls', 'nats server report jetstream']} /></section>`;
}
