/** The chat behind the page: connection, channels, the open channel, and what waits to be sent. */
import { millrace, type Event, type MillraceError, type State, type Subscription } from '@millrace/client';
import { state, type KeyedState } from '@millrace/client/state';
import { Conversation, type Message } from './conversation';
import { keepMe, keyOf, loadMe, type Me } from './me';
import { Members } from './members';
import { Outbox, randomId, type Waiting } from './outbox';
import { channelOf, postOf, type Content } from './post';

export const LOBBY = 'lobby';
const LIST = 'chat-lists/channels';
const READ_KEY = 'millrace-chat-read';
const PAGE = 50;
/** Channels with a count of unread messages. Further ones are listed without it. */
const WATCHED_MAX = 50;
const LISTED_MAX = 200;
export const UNREAD_MAX = 99;

export const pathOf = (channel: string): string => `chat/${channel}`;
const before = (position: string, count: bigint): string => position.replace(/\d+$/, (offset) => String(BigInt(offset) > count ? BigInt(offset) - count : 0n));
const offsetOf = (position: string): bigint => BigInt(/\d+$/.exec(position)![0]);

interface Watched {
  readonly subscription: Subscription;
  unread: number;
  gaps: number;
  /** Position of the newest publication that this page has received. */
  position: string | undefined;
}

export interface ChannelView {
  readonly name: string;
  readonly unread: number;
}

export class Chat {
  readonly client;
  readonly outbox: Outbox;
  me: Me;
  channel = '';
  conversation = new Conversation();
  members: Members | undefined;
  /** Whether the history of the open channel is being read, has an older part, or could not be read. */
  history: 'reading' | 'more' | 'all' | 'failed' = 'reading';
  historyError = '';
  refusal: MillraceError | undefined;
  readonly #list: KeyedState<unknown>;
  readonly #watched = new Map<string, Watched>();
  /** Positions up to which the user has read, by channel. Empty: nothing has been read. */
  readonly #read: Record<string, string>;
  #oldest: string | undefined;
  /** True while the user sees the newest message. */
  #isAtEnd = true;

  constructor(
    private readonly token: string | undefined,
    private readonly changed: () => void,
  ) {
    this.client = millrace(location.origin, token ? { token } : {});
    this.me = loadMe(token);
    this.outbox = new Outbox(this.client, this.me.id, changed, (path, position) => this.#hasReceived(path, position));
    this.#read = readPositions();
    this.#list = state(this.client, LIST);
    this.#list.on(({ key, entry }) => {
      // A channel that was created while this page is open is read from its beginning.
      if (entry && !entry.replayed && this.#list.complete && this.#read[key] === undefined) {
        this.#read[key] = '';
        keepPositions(this.#read);
      }
      this.#watch();
      changed();
    });
    this.client.onState((state) => {
      if (state.name === 'open') this.members?.announce(this.me);
      changed();
    });
    void this.outbox.open();
  }

  get state(): State {
    return this.client.state;
  }

  get channels(): ChannelView[] {
    const names = new Set([LOBBY, this.channel, ...[...this.#list].map(({ key }) => key).filter((name) => channelOf(name) === name)]);
    const sorted = [...names].filter(Boolean).sort((a, b) => +(b === LOBBY) - +(a === LOBBY) || a.localeCompare(b));
    return sorted.slice(0, LISTED_MAX).map((name) => ({ name, unread: this.#watched.get(name)?.unread ?? 0 }));
  }

  /** Opens a channel, and creates it in the list if it is new. */
  open(channel: string): void {
    if (channel === this.channel) return;
    this.members?.close();
    this.#begun(channel);
  }

  /** Reads the open channel again, after an error. */
  reopen(): void {
    this.members?.close();
    // A subscription that has ended is replaced.
    void this.#watched.get(this.channel)?.subscription.close();
    this.#watched.delete(this.channel);
    this.#begun(this.channel);
  }

  #begun(channel: string): void {
    this.channel = channel;
    this.conversation = new Conversation();
    this.history = 'reading';
    this.historyError = '';
    this.#isAtEnd = true;
    this.#oldest = undefined;
    const conversation = this.conversation;
    this.members = new Members(this.client, channel, this.me, this.token, this.changed, (text) => {
      conversation.note(text);
      this.changed();
    });
    if (channel !== LOBBY && this.#list.complete && !this.#list.get(channel)) void this.#create(channel);
    this.#watch();
    void this.#begin(conversation);
    this.changed();
  }

  /** Enters a channel into the list. Rejects with the reason, for example that the list is full. */
  async create(channel: string): Promise<void> {
    if (channel !== LOBBY) await this.#list.set(channel, { by: this.me.name, at: Date.now() }, { timeoutMs: 10_000 });
  }

  setName(name: string): void {
    if (this.me.verified) return;
    this.me = keepMe({ ...this.me, name });
    this.members?.announce(this.me);
    this.changed();
  }

  send(text: string): void {
    this.#publish(keyOf(this.me, randomId()), { text });
    this.members?.typed();
  }

  edit(message: Pick<Message, 'id' | 'at'>, text: string): void {
    this.#publish(message.id, { text, sent: message.at });
  }

  delete(message: Pick<Message, 'id' | 'at'>): void {
    this.#publish(message.id, { deleted: true, sent: message.at });
  }

  /** Adds or removes a reaction. The newest publication has all reactions of this user to the message. */
  react(id: string, emoji: string): void {
    const mine = this.conversation.reactions(id, this.me.id).filter(({ mine }) => mine).map(({ emoji }) => emoji);
    const next = mine.includes(emoji) ? mine.filter((one) => one !== emoji) : [...mine, emoji];
    // A key has one level after the author, and at most 255 bytes.
    this.#publish(keyOf(this.me, `to-${id.replaceAll(/[/.]/g, '~').slice(-100)}`), { react: id, emoji: next });
  }

  isMine(message: Pick<Message, 'author' | 'verified'>): boolean {
    return message.author === this.me.id && message.verified === this.me.verified;
  }

  /** Returns the entries of the open channel that this page has not received yet. */
  get waiting(): Waiting[] {
    const isNews = ({ channel, key, content }: Waiting): boolean => channel === pathOf(this.channel) && (content.sent !== undefined || !this.conversation.message(key));
    return this.outbox.waiting.filter((entry) => !entry.content.react && isNews(entry));
  }

  /** Reads the page before the oldest message. */
  async readOlder(): Promise<void> {
    const [conversation, until] = [this.conversation, this.#oldest];
    if (this.history === 'reading' || this.history === 'all' || !until) return;
    this.history = 'reading';
    this.changed();
    await this.#readPage(conversation, until);
  }

  setAtEnd(isAtEnd: boolean): void {
    this.#isAtEnd = isAtEnd;
    this.markRead();
  }

  /** Counts the messages of the open channel as read while the user sees them. */
  markRead(): void {
    const watched = this.#watched.get(this.channel);
    if (!watched || !this.#isAtEnd || document.hidden) return;
    watched.unread = 0;
    if (watched.position && this.#read[this.channel] !== watched.position) {
      this.#read[this.channel] = watched.position;
      keepPositions(this.#read);
    }
  }

  /** Called when the page is left. It may return from the browser's cache. */
  leave(): void {
    this.members?.leave();
  }

  returned(): void {
    this.members?.announce(this.me);
  }

  close(): void {
    this.members?.close();
    void this.client.close();
  }

  #publish(key: string, content: Omit<Content, 'name'>): void {
    this.outbox.add(pathOf(this.channel), key, { name: this.me.name ?? '', ...content });
  }

  async #create(channel: string): Promise<void> {
    try {
      await this.create(channel);
    } catch {
      // The channel works without an entry in the list. `create` reports the reason to a user who creates it by name.
    }
  }

  /** Reads the newest messages of the channel that was opened. */
  async #begin(conversation: Conversation): Promise<void> {
    const watched = this.#watched.get(this.channel)!;
    try {
      const { position } = await watched.subscription.ready;
      // The subscription may have begun earlier. Its messages are part of the pages.
      await this.#readPage(conversation, watched.position ?? position);
    } catch (thrown) {
      if (conversation === this.conversation) this.#fail(thrown as MillraceError);
    }
  }

  async #readPage(conversation: Conversation, until: string): Promise<void> {
    const since = before(until, BigInt(PAGE));
    try {
      const page = since === until ? undefined : await this.client.history(pathOf(this.channel), { since, until, limit: PAGE });
      if (conversation !== this.conversation) return;
      conversation.receiveOlder(page ?? []);
      this.#oldest = page?.[0] ? before(page[0].position, 1n) : since;
      this.history = !page || page.gap || offsetOf(this.#oldest) === 0n ? 'all' : 'more';
      if (this.history === 'all') conversation.receiveStart();
      this.markRead();
      this.changed();
    } catch (thrown) {
      if (conversation === this.conversation) this.#fail(thrown as MillraceError);
    }
  }

  #fail({ message }: MillraceError): void {
    this.history = 'failed';
    this.historyError = message;
    this.changed();
  }

  /** Subscribes to the listed channels, so that messages of each are counted. */
  #watch(): void {
    const wanted = new Set([this.channel, ...this.channels.map(({ name }) => name)].filter(Boolean).slice(0, WATCHED_MAX));
    for (const [name, { subscription }] of this.#watched) {
      if (wanted.has(name)) continue;
      void subscription.close();
      this.#watched.delete(name);
    }
    for (const name of wanted) if (!this.#watched.has(name)) this.#subscribe(name);
  }

  #subscribe(name: string): void {
    const subscription = this.client.subscribe(pathOf(name));
    const watched: Watched = { subscription, unread: 0, gaps: 0, position: undefined };
    this.#watched.set(name, watched);
    subscription.on(
      (event) => this.#receive(name, watched, event),
      (cause) => {
        if (cause?.code === 'auth' && name === this.channel) this.refusal = cause;
        this.changed();
      },
    );
    void subscription.ready.then(({ position }) => this.#countMissed(name, watched, position)).catch(() => {});
  }

  #receive(name: string, watched: Watched, event: Event): void {
    watched.position = event.position;
    this.outbox.settle();
    if (name !== this.channel) {
      const post = postOf(event);
      if (post?.kind === 'message' && !this.isMine(post)) watched.unread = Math.min(watched.unread + 1, UNREAD_MAX + 1);
      return this.changed();
    }
    const { gaps } = watched.subscription;
    if (gaps > watched.gaps) this.conversation.note('Some messages are missing: the server no longer has them.');
    watched.gaps = gaps;
    const post = this.conversation.receive(event);
    if (post) {
      this.members?.stopTyping(post.author);
      if (post.kind === 'message' && !this.isMine(post) && (document.hidden || !this.#isAtEnd)) watched.unread = Math.min(watched.unread + 1, UNREAD_MAX + 1);
    }
    this.markRead();
    this.changed();
  }

  /** A channel that is not watched has nothing to wait for. */
  #hasReceived(path: string, position: string): boolean {
    const watched = [...this.#watched].find(([name]) => pathOf(name) === path)?.[1];
    if (!watched) return true;
    const at = watched.position;
    return at !== undefined && (before(at, offsetOf(at)) !== before(position, offsetOf(position)) || offsetOf(at) >= offsetOf(position));
  }

  /** Counts the messages since the user has last read the channel. */
  async #countMissed(name: string, watched: Watched, position: string): Promise<void> {
    watched.position ??= position;
    const read = this.#read[name];
    if (read === undefined) {
      this.#read[name] = position;
      return keepPositions(this.#read);
    }
    const since = read || before(position, offsetOf(position));
    if (since === position || name === this.channel) return;
    const missed = await this.client.history(pathOf(name), { since, until: position, limit: UNREAD_MAX + 1 });
    watched.unread += missed.filter((event) => {
      const post = postOf(event);
      return post?.kind === 'message' && !this.isMine(post);
    }).length;
    this.changed();
  }
}

function readPositions(): Record<string, string> {
  try {
    const stored = (JSON.parse(localStorage.getItem(READ_KEY) ?? '{}') ?? {}) as Record<string, unknown>;
    return Object.fromEntries(Object.entries(stored).filter((entry): entry is [string, string] => channelOf(entry[0]) === entry[0] && /^([\w-]+:\d+)?$/.test(String(entry[1]))));
  } catch {
    return {};
  }
}

function keepPositions(read: Readonly<Record<string, string>>): void {
  try {
    localStorage.setItem(READ_KEY, JSON.stringify(Object.fromEntries(Object.entries(read).slice(-LISTED_MAX))));
  } catch {
    // Without storage, messages count as unread after the next start.
  }
}
