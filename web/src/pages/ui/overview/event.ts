/** One event of `GET /v1/admin/events`. */
export interface EventRow {
  readonly id: string | number;
  readonly time_ms: number;
  readonly node: string;
  readonly kind: string;
  readonly text: string;
}
