// Decides which tab leads. The tab that holds the lock of the group leads. A tab is killed or closed: the browser gives
// its lock to the next tab that waits. A leader that does not answer, because it is frozen or busy, still holds the
// lock: a follower that gets no answer steals it.
//
//              granted                    stolen, or a leader with a higher epoch
//   follower ----------> leader (epoch+1) --------------------------------------> follower
//      | no answer to `who`: steal
//
// This machine does no I/O. It reads no clock: every input carries the time, ms.
import type { Lead, Message, Resign, Take, Who } from './messages.js';

/** Silence of the leader after which a follower sends `who`, ms. Every message of the leader ends the silence. */
export const PING = 500;
/** Time for the answer, ms. */
export const ANSWER = 800;
/** Two followers that miss the leader at the same time steal at different times, ms. */
const SPREAD = 200;
/**
 * A timer that is later than this indicates that this tab was busy, or that the browser delays the timers of a hidden
 * page, by up to a second. Then the answer may already wait in the queue of this tab. A timer that is later than
 * `SUSPENDED` indicates that this tab was suspended. ms.
 */
const LATE = 250;
const SUSPENDED = 1_100;
/** Time after which a steal is repeated, ms. */
const STEAL_AGAIN = 1_000;
/** Time for which a leader must be hidden before it hands over to a visible tab, ms. */
export const HANDOVER = 5_000;
/** Minimum time between two offers to lead, and between two hand-overs, ms. */
const OFFER = 1_000;

export interface Leader {
  readonly id: string;
  readonly epoch: number;
}

type Said<M> = M extends Message ? Omit<M, 'v' | 'from'> : never;

export interface ElectionHost {
  /** Requests the lock, or takes it from its holder. A request replaces the one before. */
  lock(steal: boolean): void;
  /** Cancels the request, or releases the lock. */
  unlock(): void;
  /** Sends a message to all other tabs of the group. */
  post(message: Said<Who | Lead | Take | Resign>): void;
  /** This tab leads from now on; `unlead`: no longer. */
  lead(): void;
  unlead(): void;
  /** Another tab leads, or the same tab with a new epoch. Called after `lead`, too. */
  follow(leader: Leader): void;
}

export class Election {
  role: 'stopped' | 'follower' | 'leader' = 'stopped';
  leader: Leader | undefined;
  /** The highest epoch that this tab knows. */
  epoch = 0;
  #visible = true;
  #hiddenAt = Infinity;
  #offeredAt = -Infinity;
  /** When to test the leader, to steal the lock, and to offer a hand-over. */
  #pingAt = Infinity;
  #stealAt = Infinity;
  #handoverAt = Infinity;
  #graceGiven = false;

  constructor(
    readonly id: string,
    readonly host: ElectionHost,
    readonly random: () => number,
  ) {}

  start(now: number): void {
    if (this.role !== 'stopped') return;
    this.role = 'follower';
    this.host.lock(false);
    this.#ask(now);
  }

  stop(): void {
    if (this.role === 'stopped') return;
    if (this.role === 'leader') {
      this.#resign();
      this.host.unlead();
    }
    this.role = 'stopped';
    this.leader = undefined;
    this.#pingAt = this.#stealAt = this.#handoverAt = Infinity;
    this.host.unlock();
  }

  /** The browser has given the lock to this tab. */
  handleGranted(now: number): void {
    if (this.role === 'stopped') return this.host.unlock();
    this.role = 'leader';
    this.leader = { id: this.id, epoch: ++this.epoch };
    this.#pingAt = this.#stealAt = Infinity;
    this.#handoverAt = this.#visible ? Infinity : now + HANDOVER;
    this.host.post(this.#announcement(now));
    this.host.lead();
    this.host.follow(this.leader);
  }

  /** Another tab has stolen the lock. */
  handleStolen(now: number): void {
    if (this.role === 'stopped') return;
    if (this.role === 'leader') {
      this.#resign();
      this.#stepDown(now);
    }
    this.host.lock(false);
  }

  handleMessage(now: number, message: Who | Lead | Take | Resign): void {
    if (this.role === 'stopped') return;
    const { from } = message;
    const isOfLeader = this.role === 'follower' && from === this.leader?.id;
    if (message.kind === 'who') this.#answer(now, message);
    else if (message.kind === 'lead') this.#handleLead(now, message);
    else if (message.kind === 'take' && isOfLeader && message.to === this.id) this.#steal(now);
    else if (message.kind === 'resign' && isOfLeader && message.epoch >= this.leader!.epoch) {
      this.leader = undefined;
      this.#ask(now);
    }
  }

  /** A message of the leader of `epoch` has arrived on a link. */
  handleLife(now: number): void {
    if (this.role !== 'follower') return;
    this.#graceGiven = false;
    this.#stealAt = Infinity;
    // At different times, so that usually one follower tests the leader, and all others receive its answer, too.
    this.#pingAt = now + PING * (0.8 + 0.4 * this.random());
  }

  setVisible(now: number, visible: boolean): void {
    if (visible === this.#visible) return;
    this.#visible = visible;
    this.#hiddenAt = visible ? Infinity : now;
    if (this.role === 'leader') this.#handoverAt = visible ? Infinity : now + HANDOVER;
    else if (this.role === 'follower' && visible) this.#offer(now);
  }

  /** Returns when `handleTimeout` is due, or Infinity. */
  pollTimeout(): number {
    return Math.min(this.#pingAt, this.#stealAt, this.#handoverAt);
  }

  handleTimeout(now: number): void {
    if (now >= this.#handoverAt) {
      this.#handoverAt = Infinity;
      this.host.post(this.#announcement(now));
    }
    if (now >= this.#stealAt) {
      const late = now - this.#stealAt;
      if (late <= LATE || this.#graceGiven) return this.#steal(now);
      this.#graceGiven = true;
      // The host handles a timeout that is already due after the messages that wait.
      if (late > SUSPENDED) this.#ask(now);
      else this.#stealAt = now;
    } else if (now >= this.#pingAt) this.#ask(now);
  }

  #handleLead(now: number, { from, epoch, hidden }: Lead): void {
    // A leader with an old epoch was frozen, and does not know yet that it has lost its lock.
    if (epoch < this.epoch) return;
    const isNew = from !== this.leader?.id || epoch !== this.leader.epoch;
    // Two tabs have the same epoch if one was frozen when it got the lock. The one without the lock resigns.
    if (isNew && epoch === this.epoch && this.leader && this.#stealAt === Infinity) return;
    if (this.role === 'leader') this.#stepDown(now);
    this.epoch = epoch;
    this.leader = { id: from, epoch };
    this.handleLife(now);
    if (isNew) this.host.follow(this.leader);
    if (hidden && this.#visible) this.#offer(now);
  }

  #answer(now: number, { from, visible }: Who): void {
    if (this.role !== 'leader') return;
    if (this.#isHidden(now) && visible && now - this.#offeredAt >= OFFER) {
      this.#offeredAt = now;
      this.host.post({ kind: 'take', to: from });
    } else this.host.post(this.#announcement(now));
  }

  #isHidden(now: number): boolean {
    return now - this.#hiddenAt >= HANDOVER;
  }

  #announcement(now: number): Said<Lead> {
    return { kind: 'lead', epoch: this.epoch, hidden: this.#isHidden(now) };
  }

  /** Sends `who`, and steals the lock if no answer arrives. */
  #ask(now: number): void {
    this.host.post({ kind: 'who', visible: this.#visible });
    this.#pingAt = Infinity;
    this.#stealAt = now + ANSWER + SPREAD * this.random();
  }

  /** Reports to a leader that may be hidden that this tab is visible. */
  #offer(now: number): void {
    if (now - this.#offeredAt < OFFER) return;
    this.#offeredAt = now;
    this.host.post({ kind: 'who', visible: true });
  }

  #steal(now: number): void {
    this.#pingAt = Infinity;
    this.#stealAt = now + STEAL_AGAIN;
    this.#graceGiven = false;
    this.host.lock(true);
  }

  #resign(): void {
    this.host.post({ kind: 'resign', epoch: this.leader!.epoch });
  }

  #stepDown(now: number): void {
    this.role = 'follower';
    this.leader = undefined;
    this.#handoverAt = Infinity;
    this.host.unlead();
    this.#ask(now);
  }
}
