import { mount } from 'svelte';
import '../../lib/base.css';
import Ticker from './Ticker.svelte';

mount(Ticker, { target: document.getElementById('app')! });
