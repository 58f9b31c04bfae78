/** A refusal by the server. */
export class Refused extends Error {
  constructor(
    readonly status: number,
    detail: string,
  ) {
    super(detail);
  }
}

/** Sends a request to this server and returns its JSON answer. Throws {@link Refused} with the reason of the server. */
export async function request<T>(path: string, token: string | undefined, init: RequestInit = {}): Promise<T> {
  const response = await fetch(path, { ...init, cache: 'no-store', ...(token !== undefined && { headers: { Authorization: `Bearer ${token}` } }) });
  const answer = (await response.json()) as T & { detail?: string };
  if (!response.ok) throw new Refused(response.status, answer.detail ?? `${path} returned status ${response.status}`);
  return answer;
}
