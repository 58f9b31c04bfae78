/**
 * Data that the lab puts into the page as JSON: `crates/lab/src/analysis`, `crates/lab/src/wire/bill.rs` and
 * `crates/lab/src/report`.
 */

export type PhaseName = 'connect' | 'idle' | 'test' | 'after';
export type LoadUnit = 'clients' | 'publishers' | 'connections' | 'each-per-second' | 'bytes' | 'server-cpus';

export interface Load {
  readonly value: number;
  readonly counts: LoadUnit;
}

export interface Interval {
  readonly estimate: number;
  readonly low: number;
  readonly high: number;
}

export interface Figure {
  readonly median: number;
  readonly ci95: readonly [number, number] | null;
  readonly runs: readonly number[];
  readonly samples_beyond: number | null;
  readonly is_thin: boolean;
}

export interface MetricInfo {
  readonly metric: string;
  readonly label: string;
  readonly unit: string;
  readonly better: 'lower' | 'higher' | null;
  readonly is_primary: boolean;
}

export interface Gate {
  readonly code: string;
  readonly label: string;
  readonly value: number | null;
  readonly limit: number | null;
  readonly unit: string;
  readonly passed: boolean;
  readonly runs_failed: number;
  readonly note: string | null;
}

export interface Machine {
  readonly kernel: string;
  readonly cpu_model: string;
  readonly cores: number;
  readonly cpu_quota_cores: number | null;
  readonly memory_bytes: number;
  readonly cpu_pinning: string;
  readonly lab: string;
}

export interface Head {
  readonly scenario: string;
  readonly title: string;
  readonly thesis_rows: readonly string[];
  readonly form: 'quick' | 'full' | 'thesis';
  readonly seed: number;
  readonly started: string;
  readonly command: string;
  readonly parameters: unknown;
  readonly target_versions: Readonly<Record<string, string>>;
  readonly machine: Machine;
  readonly gates: readonly Gate[];
  readonly is_valid: boolean;
  readonly runs_planned: number;
  readonly runs_total: number;
  readonly runs_valid: number;
  readonly slo: { readonly slo: string; readonly passed: boolean; readonly points: number; readonly missed: readonly string[] } | null;
  /** Checks other than runs. */
  readonly judged?: readonly { readonly what: string; readonly total: number; readonly failed: readonly string[] }[];
}

export interface PhaseFigures {
  readonly name: PhaseName;
  readonly duration_s: Figure;
  readonly server_cpu_cores: Figure;
  readonly server_cpu_system_cores: Figure;
  readonly generator_cpu_cores: Figure;
  readonly server_memory_bytes: Figure;
  readonly server_descriptors: Figure;
  readonly probe_p50_us: Figure | null;
  readonly probe_p99_us: Figure | null;
}

export interface Percentile {
  readonly share: number;
  readonly one_in: number;
  readonly latency_us: number;
  readonly samples_beyond: number;
}

export interface Span {
  readonly name: PhaseName;
  readonly start_s: number;
  readonly end_s: number;
  readonly drained_s: number;
}

export interface Series {
  readonly run: number;
  readonly phases: readonly Span[];
  readonly step_s: number;
  readonly at_s: readonly number[];
  /** `null` in a step that the test covers too little for a rate. */
  readonly published_per_s: readonly (number | null)[];
  readonly deliveries_per_s: readonly (number | null)[];
  readonly latency_p50_us: readonly (number | null)[];
  readonly latency_p99_us: readonly (number | null)[];
  /** `null` in the step in which the run ends. */
  readonly server_cpu_cores: readonly (number | null)[];
  readonly generator_cpu_cores: readonly (number | null)[];
  readonly steal_cores: readonly (number | null)[];
  readonly server_memory_bytes: readonly number[];
  readonly heat: readonly (readonly (readonly [bucket: number, deliveries: number])[])[];
}

/** Packets in one direction of an emulated link. */
export interface LinkCounts {
  readonly received: number;
  readonly delivered: number;
  readonly lost: number;
  readonly dropped: number;
  readonly queue_packets_max: number;
  readonly queue_delay_max_ms: number;
}

export interface LinkFigures {
  readonly path: string;
  /** Empty in old recordings. */
  readonly congestion: string;
  readonly up: LinkCounts;
  readonly down: LinkCounts;
  readonly cpu_us_per_packet: number;
  readonly added_delay_p50_us: number;
  readonly added_delay_p99_us: number;
  readonly cpu_cores: number;
  readonly kernel_drops: number;
}

export interface Point {
  readonly part: string;
  readonly target: string;
  readonly transport: string;
  readonly load: Load;
  readonly runs: readonly number[];
  readonly runs_valid: number;
  readonly is_invalid: boolean;
  readonly metrics: Readonly<Record<string, Figure>>;
  readonly phases: readonly PhaseFigures[];
  readonly percentiles: readonly Percentile[];
  readonly little: {
    readonly little: { readonly in_flight: number; readonly expected: number; readonly relative_error: number; readonly holds: boolean };
    readonly is_steady: boolean;
    readonly is_broken: boolean;
  } | null;
  readonly meets_slo: boolean | null;
  /** Absent without an emulated link. */
  readonly link?: LinkFigures;
  readonly series: Series | null;
}

export interface Knee {
  readonly carried: number | null;
  readonly saturated: number;
  readonly why: 'undelivered' | 'late';
}

export interface UslPanel {
  readonly lambda: Interval;
  readonly sigma: Interval;
  readonly kappa: Interval;
  readonly peak_load: number | null;
  readonly points: readonly { readonly load: number; readonly seen_per_s: number; readonly fitted_per_s: number; readonly residual: number }[];
  readonly residual_max: number;
}

export interface MemoryLine {
  readonly bytes_per_connection: Interval;
  readonly base_bytes: Interval;
  readonly r_squared: number;
  readonly points: readonly (readonly [connections: number, bytes: number])[];
}

export interface Curve {
  readonly part: string;
  readonly target: string;
  readonly transport: string;
  readonly points: readonly number[];
  readonly knee: Knee | null;
  readonly knee_p99_s_max: number;
  readonly usl: UslPanel | null;
  readonly memory: MemoryLine | null;
}

export type Verdict = 'improved' | 'regressed' | 'within-noise' | 'too-few-runs' | 'no-ratio';

export interface Comparison {
  readonly verdict: Verdict;
  readonly ratio: Interval | null;
  readonly p: number | null;
  readonly b_above_a: number | null;
  readonly equivalent: boolean;
  readonly runs: readonly [number, number];
}

export interface Rival {
  readonly point: number;
  readonly rival_point: number;
  readonly target: string;
  readonly rival: string;
  readonly transport: string;
  readonly load: Load;
  readonly metric: string;
  readonly comparison: Comparison;
}

export interface RunNote {
  readonly part: string;
  readonly target: string;
  readonly transport: string;
  readonly load: Load;
  readonly repeat: number;
  readonly order: number;
  readonly is_valid: boolean;
  readonly findings: readonly string[];
}

export interface Table {
  readonly name: string;
  readonly title: string;
  readonly columns: readonly { readonly name: string; readonly unit: string }[];
  readonly rows: readonly (readonly (string | number | null)[])[];
  readonly notes: readonly string[];
}

export interface Bytes {
  readonly payload: number;
  readonly framing: number;
  readonly tls: number;
  readonly headers: number;
  readonly acks: number;
}

export interface Both {
  readonly up: Bytes;
  readonly down: Bytes;
}

export interface Bill {
  readonly path: { readonly link: string; readonly mtu: number; readonly header_bytes: number };
  readonly payload_bytes: number;
  readonly lines: readonly {
    readonly transport: string;
    readonly side: 'deliver' | 'publish';
    readonly unit: 'connection' | 'message' | 'silence' | 'close';
    readonly count: number;
    readonly measured: Both;
    readonly model: Both;
    readonly difference_percent: number;
  }[];
  readonly published: readonly {
    readonly thesis: string;
    readonly table: string;
    readonly item: string;
    readonly unit: string;
    readonly printed: number | null;
    readonly corrected: number | null;
    readonly ours: number | null;
    readonly remark: string;
  }[];
  readonly energy: readonly {
    readonly radio: string;
    readonly transport: string;
    readonly day: string;
    readonly heartbeat_s: number;
    readonly bytes_per_day: number;
    readonly joules_per_day: number;
    readonly states: readonly (readonly [state: string, joules: number])[];
    readonly promotions: number;
    readonly battery_percent_per_day: number;
  }[];
  readonly notes: readonly string[];
}

export interface Analysis {
  readonly format: number;
  readonly head: Head;
  readonly metrics: readonly MetricInfo[];
  readonly points: readonly Point[];
  readonly curves: readonly Curve[];
  readonly rivals: readonly Rival[];
  readonly tables: readonly Table[];
  readonly runs: readonly RunNote[];
  readonly heat_edges_us: readonly number[];
  readonly bill?: Bill | null;
}

export type PublishedUnit = 'us' | 'bytes' | 'cores' | 'per_s';

export interface PublishedPoint {
  readonly x: number;
  readonly y: number;
  readonly is: 'equal' | 'about' | 'below' | 'above';
  readonly deviation: number | null;
}

export interface PublishedFigure {
  readonly title: string;
  readonly ours: string;
  readonly x_name: string;
  readonly unit: PublishedUnit;
  readonly series: readonly { readonly name: string; readonly transport: string; readonly is_curve: boolean; readonly points: readonly PublishedPoint[] }[];
  readonly source: string;
  readonly doubts: readonly string[];
}

export interface Published {
  readonly thesis: string;
  readonly conditions: string;
  readonly figures: readonly PublishedFigure[];
  readonly tables: readonly Table[];
}

/** Content of the script tag in `report.html`. */
export interface Report {
  readonly analysis: Analysis;
  readonly published: Published;
}

export interface CompareRow {
  readonly part: string;
  readonly target: string;
  readonly transport: string;
  readonly load: Load;
  readonly metric: string;
  readonly median_a: number;
  readonly median_b: number;
  readonly verdict: Verdict;
  readonly comparison: Comparison;
  readonly p_adjusted: number | null;
}

/** One side of a comparison. */
export interface Side {
  readonly label: string;
  readonly scenario: string;
  readonly started: string;
  readonly runs: number;
}

/** Content of the script tag in a comparison. */
export interface Compared {
  readonly a: Side;
  readonly b: Side;
  readonly metrics: readonly MetricInfo[];
  readonly outcome: {
    readonly verdict: 'within-noise' | 'improved' | 'regressed' | 'refused' | 'no-verdict';
    readonly sentence: string;
    readonly options: { readonly band: number; readonly alpha: number };
    readonly differences: readonly { readonly aspect: string | null; readonly what: string; readonly a: string; readonly b: string }[];
    readonly rows: readonly CompareRow[];
    readonly unpaired: readonly string[];
  };
}
