import { mount } from 'svelte';
import '../../lib/base.css';
import './ui.css';
import Ui from './Ui.svelte';

mount(Ui, { target: document.getElementById('app')! });
