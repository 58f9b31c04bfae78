// A background page's own timers fire at most once per second. Timers of a worker are not slowed down.
onmessage = ({ data: [id, ms] }: MessageEvent<[number, number]>) => setTimeout(() => postMessage(id), ms);
