// A page's own timers are slowed down to one per second while another tab covers it; a worker's are not.
onmessage = ({ data: [id, ms] }: MessageEvent<[number, number]>) => setTimeout(() => postMessage(id), ms);
