import { mount } from 'svelte';
import '../../lib/base.css';
import './report.css';
import Page from './Page.svelte';

mount(Page, { target: document.getElementById('app')!, props: { text: document.getElementById('analysis')?.textContent ?? '' } });
