// Parts that all pages share.
import { html, Component, useEffect, useRef, useState } from './vendor/htm-preact.js';
import { act, board, changed, listen, meta, samples, ticks } from './store.js';

export { html, Component, useEffect, useRef, useState };

// -- values -------------------------------------------------------------------------------------------------------------

export function duration(seconds) {
  if (seconds == null || Number.isNaN(seconds)) return '';
  const s = Math.max(0, seconds);
  if (s < 10) return `${s.toFixed(1)} s`;
  if (s < 60) return `${Math.floor(s)} s`;
  if (s < 3600) return `${Math.floor(s / 60)}:${String(Math.floor(s % 60)).padStart(2, '0')} min`;
  if (s < 86400) return `${Math.floor(s / 3600)}:${String(Math.floor((s % 3600) / 60)).padStart(2, '0')} h`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

export const now = () => Date.now() / 1000;
export const clock = (at) => (at ? new Date(at * 1000).toLocaleTimeString([], { hour12: false }) : '');
export const moment = (at) => (at ? new Date(at * 1000).toLocaleString([], { hour12: false, dateStyle: 'short', timeStyle: 'medium' }) : '');
export const short = (id) => (id?.startsWith('~') ? id.slice(0, 7) : id?.length > 22 ? `${id.slice(0, 20)}…` : id);
export const number = (n) => (n == null ? '' : n.toLocaleString('en'));
export const plural = (n, word) => `${number(n)} ${word}${n === 1 ? '' : 's'}`;

export function useTick() {
  const [, set] = useState(0);
  useEffect(() => {
    const tick = () => set((n) => n + 1);
    ticks.add(tick);
    return () => ticks.delete(tick);
  }, []);
}

export function useBoard() {
  const [, set] = useState(0);
  useEffect(() => listen(() => set((n) => n + 1)), []);
}

/** Time left until `at`, or since `since`; passes by itself. */
export function Time({ until, since, plain }) {
  useTick();
  if (until) {
    const left = until - now();
    return html`<time class=${left < 0 ? 'late' : ''} title=${moment(until)}>${left < 0 ? 'due' : duration(left)}</time>`;
  }
  return since ? html`<time title=${moment(since)}>${duration(now() - since)}${plain ? '' : ' ago'}</time>` : null;
}

// -- slots --------------------------------------------------------------------------------------------------------------

const SIZE = 12;
const GAP = 2.5;
const STEP = SIZE + GAP;
const PAD = 2;
const sizes = new ResizeObserver((entries) => entries.forEach((entry) => entry.target.redraw?.()));
let palette = null;
function colours() {
  if (palette) return palette;
  const style = getComputedStyle(document.documentElement);
  palette = Object.fromEntries(['task', 'lease', 'lease-soft', 'gang', 'gang-soft', 'kept', 'free', 'lost', 'reserved', 'panel', 'ink'].map((n) => [n, style.getPropertyValue(`--${n}`).trim()]));
  return palette;
}
/** The colours have changed: draw everything again. */
export function repaint() {
  palette = null;
  document.querySelectorAll('canvas').forEach((canvas) => (canvas.redraw ?? canvas.parentElement.redraw)?.());
}
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', repaint);

/** A cell for each slot: filled while it runs, hollow while it is only held; gangs outlined, kept slots hatched. */
export class Cells extends Component {
  shouldComponentUpdate(next) {
    return next.cells !== this.props.cells || next.mark !== this.props.mark;
  }
  componentDidMount() {
    this.base.redraw = () => this.draw();
    sizes.observe(this.base);
    this.draw();
  }
  componentDidUpdate() {
    this.draw();
  }
  componentWillUnmount() {
    sizes.unobserve(this.base);
  }
  draw() {
    const canvas = this.base.firstChild;
    const width = this.base.clientWidth;
    if (!width) return;
    const count = this.props.cells.reduce((sum, [, n]) => sum + n, 0);
    const perRow = Math.max(1, Math.floor((width - PAD) / STEP));
    const rows = Math.max(1, Math.ceil(count / perRow));
    const height = rows * STEP + PAD;
    const ratio = devicePixelRatio || 1;
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    canvas.style.height = `${height}px`;
    this.perRow = perRow;
    const pen = canvas.getContext('2d');
    pen.scale(ratio, ratio);
    let at = 0;
    for (const [kind, n, holder, running] of this.props.cells) {
      for (let i = 0; i < n; i++) cell(pen, (at + i) % perRow, Math.floor((at + i) / perRow), kind, i < running);
      if (kind === 'gang') outline(pen, at, n, perRow, colours().gang, 1.5);
      if (this.props.mark && holder === this.props.mark) outline(pen, at, n, perRow, colours().ink, 1.5);
      at += n;
    }
  }
  find(event) {
    const box = this.base.getBoundingClientRect();
    const index = Math.floor((event.clientY - box.top - PAD) / STEP) * this.perRow + Math.floor((event.clientX - box.left - PAD / 2) / STEP);
    let at = 0;
    for (const cells of this.props.cells) {
      at += cells[1];
      if (index < at) return cells;
    }
    return null;
  }
  render({ cells, label }) {
    const told = summary(cells);
    return html`<div class="cells" role="img" aria-label=${`${label ?? ''}: ${told}`}
      onMouseMove=${(event) => {
        const found = this.find(event);
        this.base.title = found ? describe(found) : '';
        this.base.classList.toggle('link', Boolean(found?.[2]));
      }}
      onClick=${(event) => {
        const found = this.find(event);
        if (found?.[2]) location.hash = found[0] === 'lease' ? `#/lease/${found[2]}` : `#/gangs/${found[2]}`;
      }}><canvas /></div>`;
  }
}

const WORDS = { gang: 'gang', lease: 'lease', task: 'calls', reserved: 'reserved', kept: 'kept for', free: 'free', closed: 'free, draining', lost: 'lost' };
function describe([kind, n, holder, running]) {
  const busy = running && kind !== 'task' ? `, ${running} running` : '';
  return `${WORDS[kind]} ${holder}`.trim() + `: ${plural(n, 'slot')}${busy}`;
}
const summary = (cells) => cells.map(describe).join('; ') || 'no slots';

function cell(pen, column, row, kind, running) {
  const c = colours();
  const x = PAD / 2 + 0.5 + column * STEP;
  const y = PAD / 2 + 0.5 + row * STEP;
  pen.beginPath();
  pen.roundRect(x, y, SIZE - 1, SIZE - 1, 2.5);
  pen.lineWidth = 1;
  if (kind === 'free' || kind === 'closed' || kind === 'reserved') {
    pen.strokeStyle = kind === 'reserved' ? c.reserved : c.free;
    pen.setLineDash(kind === 'free' ? [] : [2, 2]);
    pen.stroke();
    pen.setLineDash([]);
  } else if (kind === 'lost') {
    pen.strokeStyle = c.lost;
    pen.globalAlpha = 0.75;
    pen.beginPath();
    pen.moveTo(x + 2, y + 2);
    pen.lineTo(x + SIZE - 3, y + SIZE - 3);
    pen.moveTo(x + SIZE - 3, y + 2);
    pen.lineTo(x + 2, y + SIZE - 3);
    pen.stroke();
    pen.globalAlpha = 1;
  } else if (kind === 'kept') {
    pen.save();
    pen.clip();
    pen.strokeStyle = c.kept;
    pen.lineWidth = 1.4;
    pen.beginPath();
    for (let d = -SIZE; d < SIZE; d += 3.5) {
      pen.moveTo(x + d, y + SIZE);
      pen.lineTo(x + d + SIZE, y);
    }
    pen.stroke();
    pen.restore();
    pen.strokeStyle = c.kept;
    pen.beginPath();
    pen.roundRect(x, y, SIZE - 1, SIZE - 1, 2.5);
    pen.stroke();
  } else if (running) {
    pen.fillStyle = c[kind];
    pen.fill();
  } else {
    pen.fillStyle = c[`${kind}-soft`];
    pen.fill();
    pen.strokeStyle = c[kind];
    pen.stroke();
  }
}

function outline(pen, at, n, perRow, colour, width) {
  pen.strokeStyle = colour;
  pen.lineWidth = width;
  for (let first = at; first < at + n; ) {
    const row = Math.floor(first / perRow);
    const last = Math.min(at + n, (row + 1) * perRow);
    pen.beginPath();
    pen.roundRect((first % perRow) * STEP + 0.25, row * STEP + 0.25, (last - first) * STEP + 0.5, STEP + 0.5, 4);
    pen.stroke();
    first = last;
  }
}

export function Legend() {
  const items = [
    ['gang', 1, 'gang, running'],
    ['gang', 0, 'gang, idle'],
    ['lease', 1, 'lease, running'],
    ['lease', 0, 'lease, idle'],
    ['task', 1, 'call'],
    ['reserved', 0, 'reserved'],
    ['kept', 0, 'kept for a gang'],
    ['free', 0, 'free'],
    ['closed', 0, 'draining'],
    ['lost', 0, 'lost'],
  ];
  return html`<div class="legend">${items.map(([kind, running, text]) => html`<span key=${text}><${Swatch} kind=${kind} running=${running} />${text}</span>`)}</div>`;
}

function Swatch({ kind, running }) {
  const ref = useRef();
  useEffect(() => {
    const canvas = ref.current;
    canvas.redraw = () => {
      const ratio = devicePixelRatio || 1;
      canvas.width = canvas.height = STEP * ratio + 2;
      const pen = canvas.getContext('2d');
      pen.scale(ratio, ratio);
      cell(pen, 0, 0, kind, running);
      if (kind === 'gang') outline(pen, 0, 1, 1, colours().gang, 1.5);
    };
    canvas.redraw();
  }, []);
  return html`<canvas class="swatch" ref=${ref} />`;
}

/** The last five minutes of one of the samples. */
export function Spark({ of, max, label }) {
  const ref = useRef();
  useTick();
  useEffect(() => {
    const canvas = ref.current;
    const ratio = devicePixelRatio || 1;
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    if (!width) return;
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    const pen = canvas.getContext('2d');
    pen.scale(ratio, ratio);
    const top = Math.max(1, ...(max ? samples.map((s) => s[max]) : samples.map((s) => s[of])));
    const span = Math.min(300_000, Math.max(60_000, Date.now() - (samples[0]?.at ?? 0)));
    const begin = Date.now() - span;
    const style = getComputedStyle(canvas);
    const points = samples.map((s) => [((s.at - begin) / span) * width, height - 1.5 - (s[of] / top) * (height - 3)]);
    if (!points.length) return;
    pen.beginPath();
    points.forEach(([x, y], i) => (i ? pen.lineTo(x, y) : pen.moveTo(x, y)));
    pen.strokeStyle = style.color;
    pen.lineWidth = 1.5;
    pen.stroke();
    pen.lineTo(points.at(-1)[0], height);
    pen.lineTo(points[0][0], height);
    pen.globalAlpha = 0.12;
    pen.fillStyle = style.color;
    pen.fill();
  });
  return html`<canvas class="spark" ref=${ref} role="img" aria-label=${label} />`;
}

// -- parts --------------------------------------------------------------------------------------------------------------

export const State = ({ is }) => html`<span class="state ${is}">${is?.replaceAll('_', ' ')}</span>`;
export const Worker = ({ name }) => html`<a class="name" href="#/worker/${name}">${name}</a>`;
export const Gang = ({ id }) => html`<a class="name gang" href="#/gangs/${id}" title=${id}>${short(id)}</a>`;
/** `title`: of a run of a schedule, `<schedule>-<number>`; its id is only the number. */
export const Job = ({ id, title = id }) => html`<a class="name" href="#/jobs/${id}" title=${title}>${run(id, title)}</a>`;
/** A title that fits, with the number of the run. */
export const run = (id, title) => (title && title !== id ? `${short(title.slice(0, -id.length - 1))}-${id}` : short(id));
export const Lease = ({ id }) => html`<a class="name lease" href="#/lease/${id}" title=${id}>${short(id)}</a>`;
/** What something waits for, as `gangline why` prints it; see board/reasons.py. `moments`: times of the day, too. */
export function Told({ sentences, most = sentences.length, moments }) {
  return html`${sentences.slice(0, most).map(
    (s, i) => html`<p key=${i} class=${s.depth ? 'under' : ''}>${s.text.split(' ').map((word) => html`${linked(word)} `)}${s.until && moments ? `${moment(s.until)}, in ` : ''}<${Time} until=${s.until} since=${s.since} plain=${1} />${s.after ?? ''}</p>`,
  )}${sentences.length > most && html`<p class="dim">and ${sentences.length - most} more lines</p>`}`;
}

/** A word of a sentence; as a link if it names a worker, a gang or a lease of the board. */
function linked(word) {
  const [, name, rest] = /^(.*?)([:,.]?)$/.exec(word);
  if (Object.hasOwn(board.workers, name)) return html`<${Worker} name=${name} />${rest}`;
  if (Object.hasOwn(board.gangs, name)) return html`<${Gang} id=${name} />${rest}`;
  if (Object.hasOwn(board.leases, name)) return html`<${Lease} id=${name} />${rest}`;
  return word;
}

export const Empty = ({ children }) => html`<p class="empty">${children}</p>`;
export const Fact = ({ name, children }) => (children == null || children === '' || children === false || (Array.isArray(children) && !children.some((c) => c || c === 0)) ? null : html`<div class="fact"><dt>${name}</dt><dd>${children}</dd></div>`);

/** A table; `columns`: [title, cell of a row, options]. Cells carry their titles, for narrow screens. */
export function Table({ columns, rows, rowKey, empty, caption }) {
  if (!rows.length) return html`<${Empty}>${empty}<//>`;
  return html`<div class="scroll"><table>
    ${caption && html`<caption>${caption}</caption>`}
    <thead><tr>${columns.map(([title, , how]) => html`<th key=${title} class=${how ?? ''}>${title}</th>`)}</tr></thead>
    <tbody>${rows.map((row) => html`<tr key=${rowKey(row)}>${columns.map(([title, of, how]) => html`<td key=${title} class=${how ?? ''} data-title=${title}>${of(row)}</td>`)}</tr>`)}</tbody>
  </table></div>`;
}

/** The commands that do the same as a page. */
export function Commands({ lines }) {
  const ns = meta.namespace && meta.namespace !== 'gangline' ? ` --namespace ${meta.namespace}` : '';
  return html`<details class="commands"><summary>The same in a terminal</summary>
    ${lines.map((line) => {
      const text = line.startsWith('gangline') ? `${line}${ns}` : line;
      return html`<div class="command" key=${line}><code>${text}</code><button class="quiet" title="Copy" onClick=${() => navigator.clipboard?.writeText(text)}>copy</button></div>`;
    })}</details>`;
}

/** Records of the history, newest first. */
export function Records({ records, empty }) {
  return html`<${Table} rowKey=${(r) => `${r.at}${r.kind}${r.lease ?? r.gang ?? r.job ?? r.worker ?? ''}${r.generation ?? ''}`} rows=${records} empty=${empty} columns=${[
    ['at', (r) => clock(r.at)],
    ['what', (r) => html`<${State} is=${r.kind} />`],
    ['who', (r) => (r.gang ? html`<${Gang} id=${r.gang} />` : r.job ? html`<${Job} id=${r.job} />` : r.worker ? html`<${Worker} name=${`${r.pool}.${r.worker}`} />` : (r.endpoint ?? r.details?.target ?? ''))],
    ['', (r) => [r.reason, r.owner && `owner ${r.owner}`, r.slots && plural(r.slots, 'slot'), r.generation && `generation ${r.generation}`, r.count && (r.seconds ? `${r.count} in ${duration(r.seconds)}` : plural(r.count, 'member')), r.workers?.join(', ')].filter(Boolean).join('; '), 'grow'],
    ['recorded by', (r) => r.by],
  ]} />`;
}

/** Shown instead of rows that were asked for: there are none, or not yet, or they cannot be had. */
export const asked = ({ value, error }, empty) => (value ? empty : (error ?? 'Loading …'));

/** What a server says to a question; asked again when the fields change, or every `every` seconds. When `round` changes
 * it is asked again, too, and the answer before is shown until then. */
export function useAnswer(ask, fields, every, round) {
  const [state, set] = useState({});
  const before = useRef('');
  const key = JSON.stringify(fields);
  useEffect(() => {
    let over = false;
    const go = () => ask().then((value) => over || set({ value }), (error) => over || set((old) => ({ ...old, error: error.message })));
    if (before.current !== key) set({});
    before.current = key;
    go();
    const timer = every && setInterval(() => document.hidden || go(), every * 1000);
    return () => {
      over = true;
      clearInterval(timer);
    };
  }, [key, round]);
  return state;
}

// -- actions ------------------------------------------------------------------------------------------------------------

const dialog = { open: null };
export function ask(action) {
  dialog.open = action;
  changed();
}

// Its fields are not controlled: each change of the board renders it again, and must not undo what is typed.
/** A button for an action; shown only where the console may act. It asks again before anything is done. */
export function Act({ action, label, title, text, warning, body, fields, danger }) {
  if (!meta.actions.includes(action)) return null;
  return html`<button class=${danger ? 'act danger' : 'act'} onClick=${() => ask({ action, title, text, warning, body, fields, danger })}>${label}</button>`;
}

export function ActionDialog() {
  useBoard();
  const ref = useRef();
  const [state, set] = useState({});
  const wanted = dialog.open;
  useEffect(() => {
    if (wanted) {
      set({});
      ref.current.showModal();
    }
  }, [wanted]);
  const close = () => {
    dialog.open = null;
    ref.current.close();
    changed();
  };
  const send = async (event) => {
    event.preventDefault();
    const given = Object.fromEntries(new FormData(event.target));
    const more = Object.fromEntries((wanted.fields ?? []).filter((f) => given[f.name] !== '').map((f) => [f.name, f.type === 'number' ? Number(given[f.name]) : given[f.name]]));
    set({ busy: true });
    try {
      const done = await act(wanted.action, { ...wanted.body, ...more, reason: given.reason });
      const failed = Object.entries(done.failed ?? {});
      if (failed.length) set({ error: `${done.done} done, ${failed.length} failed: ${failed[0][1]}` });
      else {
        wanted.done?.(done);
        close();
      }
    } catch (error) {
      set({ error: error.message });
    }
  };
  return html`<dialog ref=${ref} onCancel=${close}>
    ${wanted && html`<form onSubmit=${send} key=${wanted.title}>
      <h2>${wanted.title}</h2>
      ${wanted.text && html`<div>${wanted.text}</div>`}
      ${wanted.warning && html`<p class="warning">${wanted.warning}</p>`}
      ${(wanted.fields ?? []).map((f) => html`<label key=${f.name}>${f.label}<input name=${f.name} type=${f.type ?? 'text'} min=${f.min} step=${f.step} defaultValue=${f.value ?? ''} placeholder=${f.placeholder ?? ''} required=${f.required} /></label>`)}
      <label>Reason, for the audit trail<input name="reason" required maxlength="700" autocomplete="off" /></label>
      ${state.error && html`<p class="error" role="alert">${state.error}</p>`}
      <div class="buttons"><button type="button" onClick=${close}>Leave it</button><button class=${wanted.danger ? 'danger' : 'primary'} disabled=${state.busy && !state.error}>${wanted.title}</button></div>
    </form>`}
  </dialog>`;
}
