import { mount } from 'svelte';
import '../../lib/base.css';
import '../report/report.css';

const target = document.getElementById('app')!;
const asked = new URLSearchParams(location.search);
const [report, a, b] = [asked.get('report'), asked.get('a'), asked.get('b')];

// A report brings its charts along, so it is loaded only when it is opened.
if (report !== null) mount((await import('./Opened.svelte')).default, { target, props: { report } });
else if (a !== null && b !== null) mount((await import('./Opened.svelte')).default, { target, props: { a, b } });
else mount((await import('./Lab.svelte')).default, { target });
